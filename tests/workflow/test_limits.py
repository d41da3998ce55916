import pytest
import torch
import transformers as tr
from torch import nn

from multihead.error import MultiheadError
from multihead.workflow.limits import Limits, beyond, checked_length, length_limits

SMALL = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 16,
}
SIDES = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("attention_heads", 3))}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT = {"vocab_size": 40, "n_embd": 24, "n_layer": 1, "n_head": 3, "bos_token_id": 1, "eos_token_id": 2}


def llama(**rope):
    return tr.LlamaConfig(**SMALL, max_position_embeddings=64, rope_parameters={"rope_theta": 1e4, **rope})


MODELS = {
    "bert": (tr.BertConfig(**SMALL, max_position_embeddings=64), 64, None, "a table"),
    "gpt2": (tr.GPT2Config(**GPT, n_positions=64), 64, None, "a table"),
    "opt": (
        tr.OPTConfig(
            vocab_size=40,
            hidden_size=24,
            word_embed_proj_dim=24,
            num_hidden_layers=1,
            num_attention_heads=3,
            ffn_dim=16,
            max_position_embeddings=64,
        ),
        64,
        None,
        "a table",
    ),
    "xlm-roberta": (tr.XLMRobertaConfig(**SMALL, max_position_embeddings=66), 64, None, "a table"),
    "bart": (
        tr.BartConfig(vocab_size=40, d_model=24, **SIDES, **ENDS, max_position_embeddings=64),
        64,
        None,
        "a table",
    ),
    "led": (
        tr.LEDConfig(
            vocab_size=40,
            d_model=24,
            **SIDES,
            **ENDS,
            max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=32,
            attention_window=8,
        ),
        32,
        None,
        "a table",
    ),
    "gpt-j": (tr.GPTJConfig(**GPT, n_positions=64, rotary_dim=4), 64, None, "a table"),
    "mpt": (tr.MptConfig(d_model=24, n_heads=3, n_layers=1, vocab_size=40, max_seq_len=64), 64, None, "ALiBi"),
    "llama": (llama(rope_type="default"), None, 64, "rope type default, not scaled"),
    "llama dynamic": (llama(rope_type="dynamic", factor=2.0), None, 64, "rope type dynamic, factor 2"),
    "llama yarn": (llama(rope_type="yarn", factor=4.0), None, 64, "rope type yarn, factor 4"),
    "gemma3": (
        tr.Gemma3TextConfig(
            **SMALL,
            num_key_value_heads=3,
            head_dim=8,
            max_position_embeddings=64,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        ),
        None,
        64,
        "rope type default, not scaled and linear, factor 8",
    ),
    "t5": (tr.T5Config(vocab_size=40, d_model=24, d_kv=8, d_ff=16, num_layers=1, num_heads=3), None, None, "relative"),
    "deberta": (
        tr.DebertaV2Config(
            **SMALL,
            max_position_embeddings=64,
            relative_attention=True,
            position_biased_input=False,
            pos_att_type=["c2p"],
        ),
        None,
        64,
        "relative",
    ),
    "xlnet": (tr.XLNetConfig(vocab_size=40, d_model=24, n_layer=1, n_head=3, d_inner=16), None, None, "relative"),
    "bloom": (tr.BloomConfig(vocab_size=40, hidden_size=24, n_layer=1, n_head=3), None, None, "ALiBi"),
    "m2m": (
        tr.M2M100Config(vocab_size=40, d_model=24, **SIDES, **ENDS, max_position_embeddings=64),
        None,
        64,
        "sinusoids",
    ),
}


class Endless:
    model_max_length = 10**30


class Short:
    model_max_length = 48


def runs(model, length):
    ids = torch.randint(3, 39, (1, length))
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    try:
        with torch.no_grad():
            model(**inputs)
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_up_to_its_hard_limit_and_beyond_its_soft_one(name):
    config, hard, soft, scaling = MODELS[name]
    model = tr.AutoModel.from_config(config).eval()
    limits = length_limits(model, Endless())
    assert limits == Limits(hard=hard, soft=soft, scaling=scaling)
    assert runs(model, hard or 128)
    if hard is not None:
        assert not runs(model, hard + 1)


def test_the_tokenizer_is_asked_where_the_model_states_nothing_shorter():
    models = {name: tr.AutoModel.from_config(MODELS[name][0]) for name in ("bert", "t5", "llama")}
    assert length_limits(models["bert"], Short()) == Limits(hard=64, soft=48, scaling="a table")
    assert length_limits(models["t5"], Short()).soft == 48
    assert length_limits(models["llama"], Short()).soft == 64


def test_models_of_ones_own():
    class Own(nn.Module):
        def __init__(self, **parts):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    class Stated(nn.Module):
        config = type("Config", (), {"block_size": 32})

    unknown = "of no known kind"
    assert length_limits(Own(wpe=nn.Embedding(30, 8)), Endless()) == Limits(hard=30, soft=None, scaling="a table")
    table = nn.Parameter(torch.zeros(1, 20, 8))
    assert length_limits(Own(pos_embed=table), Endless()).hard == 20
    assert length_limits(Own(positional=Own(pe=nn.Buffer(torch.zeros(50, 1, 8)))), Endless()).hard == 50
    assert length_limits(Own(post_norm=nn.LayerNorm(8)), Endless()) == Limits(hard=None, soft=None, scaling=unknown)
    # Parts for pictures and relative positions are no limit to a text.
    others = Own(
        vision=Own(pos_embed=table), relative_position=nn.Embedding(9, 8), position_ids=nn.Buffer(table.long())
    )
    assert length_limits(others, Endless()).hard is None
    assert length_limits(Stated(), Endless()) == Limits(hard=32, soft=None, scaling=unknown)


def limits(hard=None, soft=None):
    return Limits(hard=hard, soft=soft, scaling="rope type default, not scaled")


def test_length_comes_from_the_user_or_the_model():
    assert checked_length(None, limits(hard=64)) == 64
    assert checked_length(None, limits(soft=8192)) == 512
    assert checked_length(None, limits(hard=512, soft=128)) == 128
    assert checked_length(None, limits()) == 512
    assert checked_length(100, limits()) == 100
    assert checked_length(16384, limits(soft=8192)) == 16384
    assert limits(hard=512, soft=128).stated == 128


@pytest.mark.parametrize("asked", [-1, 0, 3, 65])
def test_lengths_that_cannot_be_are_refused_with_one_that_can(asked):
    with pytest.raises(MultiheadError, match=rf"got: max_length={asked}, the model takes 64 tokens"):
        checked_length(asked, limits(hard=64, soft=32))
    with pytest.raises(MultiheadError, match=r"got: max_length=3, the model takes any number of tokens"):
        checked_length(3, limits(soft=32))


def test_reading_beyond_what_is_stated_is_noted():
    (note,) = beyond(limits(soft=8192), 16384)
    assert note.text == "read at 16,384 tokens, 2x the 8,192 it states; its positions: rope type default, not scaled"
    assert beyond(limits(soft=8192), 8192) == ()
    assert beyond(limits(hard=512), 512) == ()
