"""Heads taken out of models that run, with zeros or means in their place."""

import inspect
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.func import functional_call

from hooks.families import FAMILIES, ids
from hooks.mixed import HEADS, columns, mixed, tokens
from multihead.error import MultiheadError
from multihead.hooks import gated, watching
from multihead.interop import register_transformers
from multihead.layer import MultiHeadAttention
from multihead.measure import Batch, ablated, mean_outputs
from multihead.record import HeadAddress

DIM = 8


def replaced_by_hand(model, path, head, mean):
    """Weights under which a head's columns are closed and what they make of its mean goes into the bias."""
    linear = model.get_submodule(path)
    mine = slice(head * DIM, (head + 1) * DIM)
    weight = linear.weight.detach().clone()
    added = weight[:, mine] @ mean
    weight[:, mine] = 0
    bias = added if linear.bias is None else linear.bias + added
    return {f"{path}.weight": weight, f"{path}.bias": bias}


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "multihead"])
@pytest.mark.parametrize(
    ("name", "address", "path"),
    [
        ("bert", "L1.H2", "encoder.layer.1.attention.output.dense"),
        ("llama", "L0.H3", "model.layers.0.self_attn.o_proj"),
        ("t5", "cross.L1.H0", "decoder.block.1.layer.1.EncDecAttention.o"),
    ],
)
def test_ablated_heads_are_zeros_or_means_before_the_output_projection(name, address, path, kernel):
    family, head = FAMILIES[name], HeadAddress.parse(address)
    model, inputs = family.build("eager"), family.inputs()
    register_transformers()
    model.set_attn_implementation(kernel)
    with torch.no_grad():
        plain = model(**inputs)[0]
        with gated(model, {address: 0.0}):
            closed = model(**inputs)[0]
        with ablated(model, [address]):
            assert torch.equal(model(**inputs)[0], closed)
        assert not torch.equal(closed, plain)
        mean = torch.randn(DIM)
        linear = model.get_submodule(path)
        if linear.bias is None:
            linear.bias = nn.Parameter(torch.zeros(linear.weight.shape[0]))
        want = functional_call(model, replaced_by_hand(model, path, head.head, mean), (), inputs)[0]
        with ablated(model, [head], values={address: mean, "L0.H0": torch.ones(3)}):
            got = model(**inputs)[0]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def outputs_by_hand(model, given, path):
    """What is fed to an output projection, rows of real tokens only."""
    fed = []
    handle = model.get_submodule(path).register_forward_pre_hook(lambda _, args: fed.append(args[0].detach().double()))
    with torch.no_grad():
        for batch in given:
            model(**batch.inputs)
    handle.remove()
    rows = [f[b.inputs["attention_mask"].bool()] for f, b in zip(fed, given, strict=True)]
    return torch.cat(rows)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("name", "path"),
    [("bert", "encoder.layer.1.attention.output.dense"), ("llama", "model.layers.1.self_attn.o_proj")],
)
def test_means_are_over_real_tokens(name, path, side):
    family = FAMILIES[name]
    model = family.build().train()
    given = [Batch(inputs=family.inputs(padding=side), document=(0, 0)) for _ in range(2)]
    means = mean_outputs(model, given)
    assert model.training
    assert [str(head) for head in means] == [f"L{n}.H{h}" for n in range(2) for h in range(4)]
    want = outputs_by_hand(model.eval(), given, path).mean(0).unflatten(0, (4, DIM))
    for head in range(4):
        torch.testing.assert_close(means[HeadAddress("", 1, head)], want[head], rtol=1e-5, atol=1e-6)
    assert list(mean_outputs(model, given[0], ["L1.H2"])) == [HeadAddress("", 1, 2)]


def test_means_and_ablations_of_heads_of_several_kinds():
    model, x = mixed(), tokens()
    means = mean_outputs(model, Batch(inputs={"input_ids": x}, document=(0, 1)))
    assert len(means) == 2 * len(HEADS)
    layer, fed = model.layers[1].attn, []
    layer.out_proj.register_forward_pre_hook(lambda _, args: fed.append(args[0]))
    with torch.no_grad():
        model(x)
        for head in range(len(HEADS)):
            mean = means[HeadAddress("", 1, head)]
            torch.testing.assert_close(fed[0][..., columns(head)].double().mean((0, 1)), mean, rtol=1e-5, atol=1e-6)
            with ablated(model, [f"L1.H{head}"], values=means):
                model(x)
            changed = fed.pop()
            want = fed[0].clone()
            want[..., columns(head)] = mean.float()
            assert torch.equal(changed, want)


def test_ablations_act_at_every_step_of_generating():
    model, inputs = FAMILIES["llama"].build(), {"input_ids": ids(2, 5)}
    given = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    mean, seen = torch.randn(DIM), []
    with ablated(model, ["L1.H2"], values={"L1.H2": mean}), watching(model, lambda c: seen.append(c.output[:, :, 2])):
        cached = model.generate(**inputs, **given)
    assert len(seen) == 2 * 4
    assert all(bool((head == mean).all()) for head in seen[1::2])
    with ablated(model, ["L1.H2"], values={"L1.H2": mean}):
        assert torch.equal(model.generate(**inputs, **given, use_cache=False), cached)


def test_a_head_that_is_nan_can_be_taken_out():
    layer = MultiHeadAttention(8, 2)
    with torch.no_grad():
        layer.v_proj.weight[4:] = torch.nan
        x = torch.randn(1, 3, 8)
        assert layer(x).isnan().all()
        with ablated(layer, ["L0.H1"]):
            assert layer(x).isfinite().all()


def test_gradients_flow_to_values():
    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    value = torch.randn(4, requires_grad=True)
    with ablated(layer, ["L0.H1"], values={"L0.H1": value}):
        layer(x).sum().backward()
    torch.testing.assert_close(value.grad, 6 * layer.out_proj.weight.sum(0)[4:])


@pytest.mark.parametrize(
    ("heads", "values", "says"),
    [
        ([], None, "at least one head, and each once\n  got: no heads"),
        ("L0.H0", None, r"a list of heads\n  got: str 'L0.H0'\n  fix: pass \[\"L18.H6\"\]"),
        (7, None, "a list of heads\n  got: int '7'"),
        (["L0.H0", HeadAddress("", 0, 0)], None, "L0.H0 twice"),
        (["L0"], None, "a head address such as"),
        ([3], None, "a head\n  got: int '3'"),
        (["L0.H4"], None, "other outputs of head L0.H4 of BertModel\n  got: its layers have heads 0 to 3"),
        (["L2.H0"], None, "other outputs of head L2.H0 of BertModel\n  got: layers L0 to L1, with heads 0 to 3"),
        (["decoder.L0.H0"], None, "stacks of layers: ''"),
        (["L0.H0"], {}, "a value for head L0.H0: .*\n  got: none"),
        (["L0.H0"], {"L0.H1": torch.zeros(8)}, "a value for head L0.H0: .*\n  got: none"),
        (["L0.H0"], {"L0.H0": torch.zeros(2, 8)}, r"got: Tensor of shape \(2, 8\)"),
        (["L0.H0"], {"L0.H0": torch.zeros(8).long()}, r"got: Tensor of shape \(8,\)"),
        (["L0.H0"], {"L0.H0": torch.full((8,), torch.nan)}, r"got: Tensor of shape \(8,\)"),
        (["L0.H0"], {"L0.H0": 0.5}, "got: float '0.5'"),
        (["L0.H0"], [torch.zeros(8)], "values by head\n  got: list"),
    ],
)
def test_what_cannot_be_taken_out_is_refused_before_the_model_runs(heads, values, says):
    # The type hook of the tests would speak first.
    unchecked = contextmanager(inspect.unwrap(ablated))
    with pytest.raises(MultiheadError, match=says), unchecked(FAMILIES["bert"].build(), heads, values=values):
        pytest.fail("it was let in")


@pytest.mark.parametrize(
    ("heads", "values", "says"),
    [
        (
            ["L1.H0"],
            {"L1.H0": torch.zeros(7)},
            r"an output of head L1.H0: 8 numbers.*\n  got: a tensor of shape \(7,\)",
        ),
    ],
)
def test_what_only_a_run_tells_is_refused_then(heads, values, says):
    model = FAMILIES["bert"].build()
    with pytest.raises(MultiheadError, match=says), torch.no_grad(), ablated(model, heads, values=values):
        model(input_ids=ids(1, 4))


def test_means_of_heads_that_are_not_there():
    model, batch = FAMILIES["bert"].build(), Batch(inputs={"input_ids": ids(1, 4)}, document=(0,))
    with pytest.raises(MultiheadError, match=r"head L5.H0 of BertModel\n  got: layers L0 to L1, with heads 0 to 3"):
        mean_outputs(model, batch, ["L5.H0"])
    with pytest.raises(MultiheadError, match="no heads"):
        mean_outputs(model, batch, [])
