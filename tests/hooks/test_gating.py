import inspect
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from hooks.families import FAMILIES, ids
from hooks.tail_fallback import FALLBACK
from multihead.error import MultiheadError
from multihead.hooks import addresses, gated, watching
from multihead.layer import MultiHeadAttention
from multihead.record import HeadAddress

DIM = 8


def run(model, inputs, gates):
    with gated(model, gates):
        return model(**inputs)[0]


def columns(model, path, head, factor):
    """Outputs with the columns of one head in an output projection multiplied by a factor."""
    linear = model.get_submodule(path)
    heads = torch.arange(linear.weight.shape[1]) // DIM
    return {f"{path}.weight": linear.weight * torch.where(heads == head, factor, 1.0)}


@pytest.mark.parametrize(
    ("name", "address", "path"),
    [
        ("bert", "L1.H2", "encoder.layer.1.attention.output.dense"),
        ("llama", "L0.H3", "model.layers.0.self_attn.o_proj"),
        ("t5", "cross.L1.H0", "decoder.block.1.layer.1.EncDecAttention.o"),
        ("t5", "encoder.L0.H1", "encoder.block.0.layer.0.SelfAttention.o"),
        ("vit", "L1.H3", "layers.1.attention.o_proj"),
    ],
)
def test_a_closed_gate_equals_zeroed_columns_exactly(name, address, path):
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs()
    head = HeadAddress.parse(address).head
    with torch.no_grad():
        plain = model(**inputs)[0]
        zeroed = functional_call(model, columns(model, path, head, torch.zeros(1)), (), inputs)[0]
        closed = run(model, inputs, {address: 0.0})
        assert torch.equal(closed, zeroed)
        assert not torch.equal(closed, plain)
        assert torch.equal(run(model, inputs, {address: 1.0}), plain)
        assert torch.equal(model(**inputs)[0], plain)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_the_gradient_of_a_gate_is_that_of_the_columns_factor(kernel):
    family = FAMILIES["gpt2"]
    model, inputs = family.build(kernel), family.inputs()
    gate = torch.tensor(0.7, requires_grad=True)
    (got,) = torch.autograd.grad(run(model, inputs, {"L1.H2": gate}).square().sum(), gate)
    factor = torch.tensor(0.7, requires_grad=True)
    weight = model.transformer.h[1].attn.c_proj.weight
    scale = torch.ones(32, 1).index_put((torch.arange(16, 24),), factor.expand(8, 1))
    scaled = {"transformer.h.1.attn.c_proj.weight": weight * scale}
    (want,) = torch.autograd.grad(functional_call(model, scaled, (), inputs)[0].square().sum(), factor)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_gate_for_each_example():
    model, inputs = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    with torch.no_grad():
        both = run(model, inputs, {"L0.H1": torch.tensor([0.0, 1.0]), "L1.H0": 0.5})
        closed, open_ = run(model, inputs, {"L0.H1": 0.0, "L1.H0": 0.5}), run(model, inputs, {"L1.H0": 0.5})
    torch.testing.assert_close(both[0], closed[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(both[1], open_[1], rtol=1e-5, atol=1e-6)


def test_layers_that_share_a_module_are_gated_one_by_one():
    model, inputs = FAMILIES["albert"].build(), FAMILIES["albert"].inputs()
    outputs = []
    for layer in range(3):
        silent = []
        with torch.no_grad(), gated(model, {HeadAddress("", layer, 1): 0.0}), watching(model, silent.append) as watched:
            outputs.append(model(**inputs)[0])
        assert list(addresses(watched.sites).values()) == [("", n) for n in range(3)]
        closed = [bool((call.output[:, :, 1] == 0).all()) for call in silent]
        assert closed == [n == layer for n in range(3)]
    assert not torch.equal(outputs[0], outputs[1])


def test_gates_act_while_a_model_generates():
    model, inputs = FAMILIES["gpt2"].build(), FAMILIES["gpt2"].inputs()
    seen = []
    with (
        torch.no_grad(),
        gated(model, {"L1.H0": 0.0}),
        watching(model, lambda c: seen.append(c.output[:, :, 0].abs().max())),
    ):
        model.generate(**inputs, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert [bool(peak == 0) for peak in seen] == [False, True] * (len(seen) // 2)


def test_nested_gates_multiply():
    model, inputs = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    with torch.no_grad():
        with gated(model, {"L0.H0": 0.5}):
            twice = run(model, inputs, {"L0.H0": 0.5})
        assert torch.equal(twice, run(model, inputs, {"L0.H0": 0.25}))


def test_gates_and_gradient_checkpoints():
    model, inputs = FAMILIES["llama"].build().train(), FAMILIES["llama"].inputs()
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            model.activation_checkpointing_enable()
        gate = torch.tensor(0.3, requires_grad=True)
        with gated(model, {"L1.H1": gate}):
            loss = model(**inputs, use_cache=False)[0].square().sum()
            gradients.append(torch.autograd.grad(loss, [gate, *model.parameters()]))
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain)


def test_gates_on_shared_layers_refuse_gradient_checkpoints():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = MultiHeadAttention(16, 4)

        def forward(self, x):
            for _ in range(3):
                x = x + checkpoint(self.attn, x, use_reentrant=False)
            return x

    model, gate = Shared(), torch.tensor(0.3, requires_grad=True)
    with pytest.raises(MultiheadError, match="attn is called 3 times a pass"), gated(model, {"L1.H1": gate}):
        model(torch.randn(1, 3, 16)).sum().backward()


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ({"decoder.L0.H0": 0.0}, "stacks of layers: ''"),
        ({"L2.H0": 0.0}, "layers L0 to L1, with heads 0 to 3"),
        ({"L1.H4": 0.0}, "L1.H4 of BertModel.*heads 0 to 3"),
        ({"L1.H0": torch.ones(3)}, r"shape \(3,\)"),
        ({"head 3": 0.0}, "a head address such as L18.H6"),
    ],
)
def test_gates_that_fit_nothing_are_refused(gates, words):
    model, inputs = FAMILIES["bert"].build(), FAMILIES["bert"].inputs()
    with pytest.raises(MultiheadError, match=f"(?s){words}"), torch.no_grad():
        run(model, inputs, gates)


def test_gates_that_never_act_are_told():
    model = FAMILIES["t5"].build()
    with pytest.raises(MultiheadError, match="ran do not have this layer"), gated(model, {"cross.L0.H0": 0.0}):
        model.get_encoder()(input_ids=ids(2, 4))


@pytest.mark.parametrize(
    ("name", "stack", "words"),
    [
        ("led", "encoder", "go through transpose after"),
        ("longformer", "", "go through transpose"),
        ("hiera", "", "5 dim"),
    ],
)
def test_gates_where_heads_cannot_be_multiplied(name, stack, words):
    tail = FALLBACK[name]
    model, address = tail.build(), HeadAddress(stack, 0, 0)
    with (
        pytest.raises(MultiheadError, match=rf"(?s)gates on heads of.*{words}"),
        torch.no_grad(),
        gated(model, {address: 0.0}),
    ):
        model(**tail.inputs())


@pytest.mark.parametrize(
    ("name", "address", "path"),
    [
        ("deberta-v2", "L1.H2", "encoder.layer.1.attention.output.dense"),
        ("bloom", "L0.H3", "transformer.h.0.self_attention.dense"),
        ("falcon", "L1.H1", "transformer.h.1.self_attention.dense"),
        ("gpt-neo", "L1.H0", "transformer.h.1.attn.attention.out_proj"),
        ("xglm", "L0.H2", "model.layers.0.self_attn.out_proj"),
        ("fsmt", "cross.L1.H1", "decoder.layers.1.encoder_attn.out_proj"),
        ("wavlm", "L1.H3", "encoder.layers.1.attention.out_proj"),
    ],
)
def test_a_closed_gate_on_attention_without_a_seam_equals_zeroed_columns(name, address, path):
    tail = FALLBACK[name]
    model, inputs = tail.build(), tail.inputs()
    head = HeadAddress.parse(address).head
    linear = model.get_submodule(path)
    dim = linear.weight.shape[1] // (2 if "cross" in address else 4)
    keep = torch.arange(linear.weight.shape[1]) // dim != head
    with torch.no_grad():
        plain = model(**inputs)[0]
        zeroed = functional_call(model, {f"{path}.weight": linear.weight * keep}, (), inputs)[0]
        closed = run(model, inputs, {address: 0.0})
        torch.testing.assert_close(closed, zeroed, atol=1e-6, rtol=1e-5)
        assert not torch.equal(closed, plain)
        assert torch.equal(run(model, inputs, {address: 1.0}), plain)
        assert torch.equal(model(**inputs)[0], plain)


def test_gates_on_a_model_without_attention():
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(MultiheadError, match="found none"), gated(model, {"L0.H0": 0.0}):
        pytest.fail("gates on nothing")


@pytest.mark.parametrize(
    ("gates", "says"),
    [
        ({"L0.H0": "zero"}, "got: str 'zero'"),
        ({"L0.H0": None}, "got: NoneType 'None'"),
        ({"L0.H0": float("nan")}, "got: float 'nan'"),
        ({"L0.H0": float("inf")}, "got: float 'inf'"),
        ({"L0.H0": 10**400}, "got: int '1000"),
        ({"L0.H0": 1j}, "got: complex '1j'"),
        ({"L0.H0": torch.tensor([1.0, torch.nan])}, r"got: Tensor of shape \(2,\)"),
        ({"L0.H0": torch.ones(2, 2)}, r"got: Tensor of shape \(2, 2\)"),
        ({"L0.H0": torch.ones((), dtype=torch.complex64)}, "finite number as the gate of L0.H0"),
        ({3: 0.0}, "a head\n  got: int '3'"),
        ({"L0.H0": 0.0, HeadAddress("", 0, 0): 1.0}, "L0.H0 twice"),
        ([("L0.H0", 0.0)], "got: list .*\n  fix: pass a dict"),
        (None, "got: NoneType 'None'\n  fix: pass a dict"),
    ],
)
def test_gates_that_cannot_multiply_a_head_are_refused_before_the_model_runs(gates, says):
    # The type hook of the tests would speak first.
    unchecked = inspect.unwrap(gated)
    with pytest.raises(MultiheadError, match=says), contextmanager(unchecked)(nn.Linear(1, 1), gates):
        pass


def test_gates_on_what_is_no_model_are_refused():
    with (
        pytest.raises(MultiheadError, match=r"a model, a torch\.nn\.Module"),
        contextmanager(inspect.unwrap(gated))("bert", {}),
    ):
        pass


def test_whole_numbers_and_switches_are_gates_too():
    model = FAMILIES["bert"].build()
    inputs = {"input_ids": ids(1, 5)}
    with torch.no_grad():
        want = run(model, inputs, {"L1.H2": 0.0})
        for gate in (0, False, torch.tensor(0), torch.tensor([False])):
            with contextmanager(inspect.unwrap(gated))(model, {"L1.H2": gate}):
                assert torch.equal(model(**inputs)[0], want)
