import pytest
import torch
import transformers as hf
from torch import nn

from hooks.families import FAMILIES, VOCAB, cross_bert, ids
from multihead.error import MultiheadError
from multihead.hooks import addresses, locate, watching

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


def bloom():
    return hf.BloomModel(hf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4)).eval()


def test_a_family_that_computes_attention_by_itself_cannot_be_located():
    with pytest.raises(MultiheadError, match=r"BloomModel: found none.*h\.0\.self_attention \(BloomAttention\)"):
        locate(bloom())


def test_nothing_like_attention_at_all():
    with pytest.raises(MultiheadError, match="look like attention: none"):
        locate(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))


def test_a_long_list_of_lookalikes_is_cut():
    model = nn.Sequential(*(nn.MultiheadAttention(4, 2) for _ in range(7)))
    with pytest.raises(MultiheadError, match=r"4 \(MultiheadAttention\) and 2 more"):
        locate(model)


def test_a_watched_model_without_visible_attention_complains_at_the_end_of_its_pass():
    model, before = bloom(), []
    with (
        pytest.raises(MultiheadError, match="it ran, and no attention call passed through") as caught,
        torch.no_grad(),
        watching(model, before.append),
    ):
        model(input_ids=ids(1, 4))
    assert "BloomAttention" in caught.value.arrived
    assert before == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


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
