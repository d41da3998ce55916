import pytest
import torch
import transformers as hf
from torch import nn

from hooks.families import FAMILIES, VOCAB, cross_bert, ids
from hooks.own import Tutorial
from hooks.tail_fallback import FALLBACK
from hooks.tail_seen import SEEN
from multihead.error import MultiheadError
from multihead.hooks import addresses, families, locate, watching

HEADS = {"encoder": 4, "decoder": 2, "cross": 2}


@pytest.mark.parametrize("name", list(FAMILIES))
def test_what_is_located_is_what_is_watched(name):
    family = FAMILIES[name]
    model = family.build(family.kernels[0])
    located = locate(model)
    heads = {}
    with torch.no_grad(), watching(model, lambda call: heads.setdefault(call.site, call.problem.heads)) as watched:
        model(**family.inputs())
    first = [site for site in watched.sites if site.repeat == 0]
    assert {entry.site for entry in located} == set(first)
    for entry in located:
        assert entry.heads == heads[entry.site]


def test_stacks_do_not_depend_on_what_ran():
    model = FAMILIES["bart"].build()
    with torch.no_grad(), watching(model, lambda call: None) as watched:
        model.get_encoder()(input_ids=ids(2, 5))
    assert list(addresses(watched.sites).values()) == [("encoder", 0), ("encoder", 1)]


def test_a_decoder_made_of_an_encoder_class_is_told_apart():
    model = hf.EncoderDecoderModel(cross_bert()).eval()
    with torch.no_grad(), watching(model, lambda call: None) as watched:
        model(input_ids=ids(2, 5), decoder_input_ids=ids(2, 5))
    found = addresses(watched.sites)
    assert [site.cross for site in watched.sites] == [False, False, False, True, False, True]
    assert list(found.values()) == [
        ("encoder", 0),
        ("encoder", 1),
        ("decoder", 0),
        ("cross", 0),
        ("decoder", 1),
        ("cross", 1),
    ]


def test_gpt2_with_cross_attention_has_two_stacks():
    config = hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, add_cross_attention=True, eos_token_id=2)
    config.bos_token_id = 1
    model = hf.GPT2LMHeadModel(config).eval()
    with torch.no_grad(), watching(model, lambda call: None) as watched:
        model(input_ids=ids(2, 5), encoder_hidden_states=torch.randn(2, 5, 32))
    assert list(addresses(watched.sites).values()) == [("", 0), ("cross", 0), ("", 1), ("cross", 1)]


def test_groups_of_shared_layers_are_numbered_as_they_are_called():
    config = FAMILIES["albert"].config()
    config.num_hidden_layers, config.num_hidden_groups, config.inner_group_num = 4, 2, 2
    model = hf.AlbertModel(config).eval()
    with torch.no_grad(), watching(model, lambda call: None) as watched:
        model(input_ids=ids(2, 5))
    found = addresses(watched.sites)
    assert list(found.values()) == [("", n) for n in range(8)]
    assert [(site.module.removeprefix("encoder.albert_layer_groups."), site.repeat) for site in found] == [
        (f"{group}.albert_layers.{inner}.attention", repeat)
        for group in range(2)
        for repeat in range(2)
        for inner in range(2)
    ]


def unseeable():
    """Attention in blocks, without a softmax of torch."""
    return FALLBACK["reformer"].build()


def test_a_family_that_computes_attention_in_another_way_cannot_be_located():
    with pytest.raises(MultiheadError, match=r"ReformerModel: found none.*attention \(ReformerAttention\)") as caught:
        locate(unseeable())
    assert f"lists {len(families())} families" in caught.value.remedy


@pytest.mark.parametrize("name", ["bloom", "siglip", "led"])
def test_what_is_located_is_printed_as_a_table(name):
    tail = FALLBACK.get(name) or SEEN[name]
    located = locate(tail.build())
    first, *rows = str(located).splitlines()
    assert first.split() == ["layer", "heads", "how", "module"]
    assert [row.split()[3] for row in rows] == [entry.site.module for entry in located]
    assert [row.split()[2] for row in rows] == [entry.how for entry in located]
    places = {
        "bloom": ["L0", "L1"],
        "siglip": ["text_model.L0", "text_model.L1", "vision_model.L0", "vision_model.L1", "vision_model.L2"],
        "led": [f"encoder.L{n}" for n in range(2)] + [f"{s}.L{n}" for n in range(2) for s in ("decoder", "cross")],
    }[name]
    assert [row.split()[0] for row in rows] == places


def test_a_layer_that_states_no_heads_and_a_model_that_is_a_layer():
    class Bare(nn.Module):
        def forward(self, x):
            return (x @ x.mT).softmax(-1) @ x

    assert str(locate(Bare())).splitlines()[1].split() == ["L0", "?", "fallback", "(the", "model)"]


def test_a_head_above_layers_of_attention_is_no_layer():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleList([Tutorial(), Tutorial()])

        def forward(self, x):
            for layer in self.inner:
                x = layer(x)
            return (x.mean(-1).softmax(-1)[:, None] @ x)[:, 0]

    model, calls = Pooled(), []
    assert [entry.site.module for entry in locate(model)] == ["inner.0", "inner.1"]
    with torch.no_grad(), watching(model, calls.append):
        model(torch.randn(2, 5, 16))
    assert [call.site.module for call in calls] == ["inner.0", "inner.1"]


def test_nothing_like_attention_at_all():
    with pytest.raises(MultiheadError, match="look like attention: none"):
        locate(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))


def test_a_long_list_of_lookalikes_is_cut():
    class EmptyAttention(nn.Module):
        pass

    model = nn.Sequential(*(EmptyAttention() for _ in range(7)))
    with pytest.raises(MultiheadError, match=r"4 \(EmptyAttention\) and 2 more"):
        locate(model)


@pytest.mark.parametrize(
    ("name", "words"), [("reformer", "LocalSelfAttention"), ("hiera", "attn: its softmax has 5 dimensions")]
)
def test_a_watched_model_without_visible_attention_complains_at_the_end_of_its_pass(name, words):
    model, before = FALLBACK[name].build(), []
    with (
        pytest.raises(MultiheadError, match="it ran, and no attention call passed through") as caught,
        torch.no_grad(),
        watching(model, before.append),
    ):
        model(**FALLBACK[name].inputs())
    assert words in caught.value.arrived
    assert before == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_part_that_ran_without_attention_complains_when_the_watch_closes():
    class Idle(FAMILIES["bert"].model):
        def forward(self, x):
            return x + 1

    model = nn.ModuleDict({"idle": Idle(FAMILIES["bert"].config())})
    watch = watching(model, lambda call: None)
    watch.__enter__()
    model["idle"](torch.ones(2))
    with pytest.raises(MultiheadError, match="no attention call passed through"):
        watch.__exit__(None, None, None)


def test_a_watch_in_which_nothing_ran_is_no_error():
    with watching(FAMILIES["bert"].build(), lambda call: None) as watched:
        pass
    assert watched.sites == ()
