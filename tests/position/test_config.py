"""Rotary positions read from configurations, as transformers makes them and as older files spell them."""

import pytest
import torch

from multihead.error import MultiheadError
from multihead.position import DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Rotary, YaRN


def test_llama_3_1_as_published():
    config = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    }
    assert Rotary.from_config(config) == Rotary(500000.0, scaling=Llama3())


def test_no_word_of_positions_is_the_default():
    assert Rotary.from_config({}) == Rotary() == Rotary.from_config({"rope_scaling": None, "rope_theta": None})
    assert Rotary.from_config({"rope_scaling": {"rope_type": "default"}, "rope_theta": 7}) == Rotary(7.0)


def test_old_names():
    assert Rotary.from_config({"rope_scaling": {"type": "linear", "factor": 2}}) == Rotary(scaling=Linear(2.0))
    neox = {"hidden_size": 64, "num_attention_heads": 2, "rotary_pct": 0.25, "rotary_emb_base": 500}
    assert Rotary.from_config(neox) == Rotary(500.0, dim=8)
    assert Rotary.from_config({"rotary_dim": 64, "model_type": "gptj"}) == Rotary(dim=64, layout="interleaved")
    phi = {
        "rope_scaling": {"type": "su", "short_factor": [1, 1.5], "long_factor": [2, 3]},
        "original_max_position_embeddings": 16,
        "max_position_embeddings": 64,
    }
    assert Rotary.from_config(phi).scaling == LongRoPE((1.0, 1.5), (2.0, 3.0), 16, factor=4.0)


def test_part_of_a_head():
    config = {"head_dim": 96, "rope_parameters": {"partial_rotary_factor": 0.25}}
    assert Rotary.from_config(config).dim == 24
    assert Rotary.from_config(config, head_dim=32).dim == 8
    assert Rotary.from_config({"partial_rotary_factor": 0.5, "head_dim": 12}).dim == 6
    assert Rotary.from_config({"partial_rotary_factor": 1.0}).dim is None
    # In models with latent attention the rotated part is a tensor of its own.
    assert Rotary.from_config({"partial_rotary_factor": 0.3, "qk_rope_head_dim": 16}).dim is None
    told = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    assert Rotary.from_config({"rope_parameters": told}) == Rotary(scaling=Proportional(0.25))


def test_the_layout():
    assert Rotary.from_config({"model_type": "deepseek_v3"}).layout == "interleaved"
    assert Rotary.from_config({"model_type": "deepseek_v3", "rope_interleave": False}).layout == "half"
    assert Rotary.from_config({"model_type": "llama"}).layout == "half"


def test_trained_lengths():
    stretched = {"rope_type": "yarn", "factor": 4.0}
    assert Rotary.from_config({"rope_parameters": stretched, "max_position_embeddings": 99}).scaling == YaRN(4.0, 99)
    own = {"rope_parameters": stretched | {"original_max_position_embeddings": 50}, "max_position_embeddings": 200}
    assert Rotary.from_config(own).scaling == YaRN(4.0, 50)
    assert Rotary.from_config(own | {"original_max_position_embeddings": 25}).scaling == YaRN(4.0, 25)
    dynamic = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 77}
    assert Rotary.from_config(dynamic).scaling == DynamicNTK(2.0, 77)


def test_layers_that_differ():
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "none": None,
    }
    config = {"rope_parameters": parameters}
    assert Rotary.from_config(config, layer_type="full_attention") == Rotary(1e6, scaling=Linear(8.0))
    assert Rotary.from_config(config, layer_type="sliding_attention") == Rotary(1e4)
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert Rotary.from_config(old, layer_type="full_attention") == Rotary(1e6, scaling=Linear(8.0))
    assert Rotary.from_config(old, layer_type="sliding_attention") == Rotary(1e4)
    modern = {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    assert [Rotary.from_config(modern, layer_type=f"{n}_attention").base for n in ("full", "sliding")] == [1.6e5, 1e4]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gemma3", "Gemma3TextConfig"),
        ("gemma4", "Gemma4TextConfig"),
        ("modernbert", "ModernBertConfig"),
        ("qwen3_next", "Qwen3NextConfig"),
        ("gpt_oss", "GptOssConfig"),
        ("deepseek_v3", "DeepseekV3Config"),
        ("phi3", "Phi3Config"),
        ("gpt_neox", "GPTNeoXConfig"),
        ("mistral4", "Mistral4Config"),
    ],
)
def test_the_defaults_of_models(name, kind):
    module = pytest.importorskip(f"transformers.models.{name}.configuration_{name}", reason="it is the oracle")
    modeling = pytest.importorskip(f"transformers.models.{name}.modeling_{name}", reason="it is the oracle")
    config = getattr(module, kind)()
    kinds = [key for key in vars(modeling) if key.endswith("RotaryEmbedding") and "Vision" not in key]
    embedding = getattr(modeling, kinds[0])(config)
    types = sorted(set(config.layer_types)) if "inv_freq" not in dict(embedding.named_buffers()) else [None]
    for layer_type in types:
        theirs = dict(embedding.named_buffers())["inv_freq" if layer_type is None else f"{layer_type}_inv_freq"]
        told = config.to_dict()
        rotary = Rotary.from_config(told, layer_type=layer_type)
        size = (
            told.get("qk_rope_head_dim") or told.get("head_dim") or told["hidden_size"] // told["num_attention_heads"]
        )
        if name == "gemma4" and layer_type == "full_attention":
            size = 512  # by layer, which only the whole configuration tells
        assert torch.equal(rotary.inverse_frequencies(size), theirs)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": 4.0}, r"as a dict\n  got: float 4.0\n  fix: pass config.to_dict"),
        (
            {"rope_parameters": {"rope_type": "magic"}},
            r"that is known\n  got: rope_type='magic'\n  fix: one of default,",
        ),
        (
            {"rope_parameters": {"rope_type": "linear"}},
            r"factor for the rotary scaling 'linear'\n  got: rope_parameters=\{'rope_type': 'linear'\}\n  fix: add",
        ),
        ({"rope_parameters": {"type": "dynamic", "factor": 2.0}}, r"max_position_embeddings for the rotary scaling"),
        ({"rope_parameters": {"type": "yarn", "factor": 2.0}}, r"original_max_position_embeddings for the rotary"),
        ({"rope_parameters": {"type": "linear", "factor": "two"}}, r"Linear with a factor.*\n  got: factor=nan"),
        (
            {"rope_parameters": {"mrope_section": [16, 24, 24]}},
            r"on one axis\n  got: mrope_section=\[16, 24, 24\] \(time, height and width\)\n  fix: for text alone",
        ),
        (
            {"partial_rotary_factor": 0.5},
            r"the size of a head.*\n  got: head_dim=None, hidden_size=None.*\n  fix: pass head_dim=",
        ),
        (
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {}, "none": None}},
            r"one kind of layers, since they differ\n  got: layer_type=None; there are full_attention, "
            r"sliding_attention\n  fix: pass layer_type='full_attention'",
        ),
    ],
)
def test_bad_input(config, message):
    with pytest.raises(MultiheadError, match=message):
        Rotary.from_config(config)


def test_a_kind_of_layers_without_rotary_positions():
    config = {"rope_parameters": {"full_attention": {}, "none": None}}
    with pytest.raises(MultiheadError, match=r"got: layer_type='none'; there are full_attention\n"):
        Rotary.from_config(config, layer_type="none")
