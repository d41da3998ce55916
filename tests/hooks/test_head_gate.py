"""One gate for every head of a model, learned together."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from built import needs_kernel
from hooks.families import FAMILIES
from hooks.mixed import HEADS, columns, mixed, randomise, tokens
from multihead.error import MultiheadError
from multihead.hooks import HeadGate, gated
from multihead.interop import register_transformers
from multihead.layer import MultiHeadAttention

DIM = 8


def loss_of(model, inputs):
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    out = out if isinstance(out, torch.Tensor) else out[0]
    return out.square().mean(), out


def gradients(model, inputs, gate):
    with gate.acting():
        loss, _ = loss_of(model, inputs)
    return torch.autograd.grad(loss, list(gate.parameters()))


def differences(model, inputs, gate, step):
    """Central differences of the loss with respect to every gate."""
    found = []
    with torch.no_grad():
        for gates in gate.parameters():
            row = []
            for head in range(len(gates)):
                before, sides = gates[head].clone(), []
                for sign in (1, -1):
                    gates[head] = before + sign * step
                    with gate.acting():
                        sides.append(loss_of(model, inputs)[0])
                gates[head] = before
                row.append((sides[0] - sides[1]) / (2 * step))
            found.append(torch.stack(row))
    return found


@pytest.mark.parametrize("backend", ["sdpa", "tiled", "reference"])
@pytest.mark.parametrize("grouped", [False, True])
def test_gradients_are_finite_differences_on_our_module(backend, grouped):
    kv_heads = 2 if grouped else 4
    model = nn.Sequential(*(MultiHeadAttention(12, 4, kv_heads=kv_heads, backend=backend) for _ in range(2)))
    model = randomise(model).double()
    gate = HeadGate(model, 0.8)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    assert [len(gates) for gates in gate.parameters()] == [4, 4]
    for got, want in zip(gradients(model, x, gate), differences(model, x, gate, 1e-5), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


@needs_kernel
def test_gradients_are_finite_differences_on_the_compiled_kernel():
    model = randomise(MultiHeadAttention(12, 4, kv_heads=2, backend="native")).requires_grad_(False)
    gate, x = HeadGate(model, 0.8), torch.randn(2, 5, 12)
    (got,) = gradients(model, x, gate)
    # The loss is a parabola of the gates of the last layer: its differences are exact, however far apart.
    (want,) = differences(model, x, gate, 0.5)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "multihead"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_gradients_are_finite_differences_on_models_of_transformers(name, kernel):
    family = FAMILIES[name]
    register_transformers()
    model, inputs = family.build("sdpa").double(), family.inputs()
    model.set_attn_implementation(kernel)
    gate = HeadGate(model)
    assert {gates.dtype for gates in gate.parameters()} == {torch.float64}
    # These models compute norms or softmax in float32 whatever they are in.
    for got, want in zip(gradients(model, inputs, gate), differences(model, inputs, gate, 1e-2), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-4)
        assert bool(got.abs().max() > 1e-3)


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("bert", ["encoder.layer.0.attention.output.dense", "encoder.layer.1.attention.output.dense"]),
        ("llama", ["model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"]),
    ],
)
def test_gates_equal_scaled_columns_of_the_output_projections(name, paths):
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs()
    gate = HeadGate(model)
    with torch.no_grad():
        for gates in gate.parameters():
            gates.copy_(torch.randn(len(gates)))
        gate["L0.H1"] = 0.0
    state = {}
    for path, gates in zip(paths, gate.parameters(), strict=True):
        state[f"{path}.weight"] = model.get_submodule(path).weight * gates.repeat_interleave(DIM)
    with gate.acting():
        loss, out = loss_of(model, inputs)
    want = functional_call(model, state, (), inputs)[0]
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    got = torch.autograd.grad(loss, list(gate.parameters()))
    for one, other in zip(got, torch.autograd.grad(want.square().mean(), list(gate.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_open_gates_leave_a_model_alone_and_one_step_reaches_all_heads():
    family = FAMILIES["t5"]
    model, inputs = family.build(), family.inputs()
    gate = HeadGate(model)
    assert sorted(gate.layers) == sorted(f"{stack}_L{n}" for stack in ("encoder", "decoder", "cross") for n in (0, 1))
    with torch.no_grad():
        plain = model(**inputs)[0]
        with gate.acting():
            assert torch.equal(model(**inputs)[0], plain)
    with gate.acting():
        loss_of(model, inputs)[0].backward()
    assert all(bool((gates.grad != 0).all()) for gates in gate.parameters())
    # The model itself is none of its parts.
    assert len(list(gate.modules())) == 2


def test_gates_are_read_and_set_by_address():
    model = FAMILIES["bert"].build()
    gate = HeadGate(model, 0.5)
    assert gate["L1"].tolist() == [0.5] * 4
    gate["L1.H2"] = 0.0
    gate["L0"] = torch.arange(4.0)
    assert gate["L1"].tolist() == [0.5, 0.5, 0.0, 0.5]
    assert gate["L0.H3"].item() == 3.0
    gate["L0.H3"].backward()
    assert gate.layers["L0"].grad.tolist() == [0, 0, 0, 1]
    twin = HeadGate(model)
    twin.load_state_dict(gate.state_dict())
    assert torch.equal(twin["L0"], gate["L0"])
    inputs = FAMILIES["bert"].inputs()
    with torch.no_grad():
        gate["L0"] = 1.0
        gate["L1"] = torch.tensor([1.0, 1.0, 0.0, 1.0])
        with gate.acting():
            got = model(**inputs)[0]
        with gated(model, {"L1.H2": 0.0}):
            assert torch.equal(got, model(**inputs)[0])
    assert "BertModel" in str(gate)


def test_values_for_each_example_take_the_place_of_parameters():
    model, inputs = FAMILIES["llama"].build(), FAMILIES["llama"].inputs()
    gate = HeadGate(model)
    values = torch.rand(2, 4, requires_grad=True)
    with gate.acting({"L1": values}):
        _, both = loss_of(model, inputs)
    for row in range(2):
        alone = HeadGate(model)
        alone["L1"] = values[row]
        with torch.no_grad(), alone.acting():
            want = model(**inputs)[0]
        torch.testing.assert_close(both[row], want[row], rtol=1e-4, atol=1e-5)
    (grad,) = torch.autograd.grad(both[0].square().sum(), values)
    assert bool((grad[0] != 0).all())
    assert not grad[1].any()


def test_heads_of_several_kinds_have_one_row_of_gates():
    model, x = mixed(), tokens()
    gate = HeadGate(model)
    with torch.no_grad():
        gate["L1"] = factors = torch.randn(len(HEADS))
        twin = copy.deepcopy(model)
        for head, factor in enumerate(factors):
            twin.layers[1].attn.out_proj.weight[:, columns(head)] *= factor
        with gate.acting():
            torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)


def test_layers_that_share_a_module_get_gates_when_they_are_called():
    model, inputs = FAMILIES["albert"].build(), FAMILIES["albert"].inputs()
    gate = HeadGate(model)
    assert list(gate.layers) == ["L0"]
    with pytest.raises(MultiheadError, match=r"gates of layer L2 of AlbertForMaskedLM\n  got: gates of L0"):
        gate["L2.H0"]
    with torch.inference_mode(), gate.acting():
        model(**inputs)
    assert list(gate.layers) == ["L0", "L1", "L2"]
    grads = gradients(model, inputs, gate)
    assert all(bool(grad.any()) for grad in grads)


def test_gates_act_while_a_model_generates():
    model, inputs = FAMILIES["gpt2"].build(), FAMILIES["gpt2"].inputs()
    given = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    gate = HeadGate(model)
    gate["L1"] = torch.tensor([0.0, 3.0, 1.0, -2.0])
    with gate.acting():
        got = model.generate(**inputs, **given)
    with gated(model, {"L1.H0": 0.0, "L1.H1": 3.0, "L1.H3": -2.0}):
        assert torch.equal(got, model.generate(**inputs, **given))


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda g: g["L0.H4"], r"the gate of head L0.H4\n.*heads 0 to 3"),
        (lambda g: g["L5"], "gates of layer L5 of BertModel"),
        (lambda g: g["layer 3"], "a layer such as L3 or encoder.L3"),
        (lambda g: g.__setitem__("L0.H0", float("nan")), "finite numbers for gate L0.H0"),
        (lambda g: g.__setitem__("L0.H0", torch.ones(2)), r"of shape \(2,\)"),
        (lambda g: g.__setitem__("L0", torch.ones(3)), r"or 4 for all heads of the layer\n.*shape \(3,\)"),
    ],
)
def test_gates_that_are_not_there_or_cannot_be_set(act, says):
    gate = HeadGate(FAMILIES["bert"].build())
    with pytest.raises(MultiheadError, match=f"(?s){says}"):
        act(gate)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"L0": torch.ones(5)}, r"gates of layer L0: \(4,\), or \(2, 4\)"),
        ({"L7": torch.ones(4)}, r"gates of L7 of BertModel\n  got: layers L0, L1"),
        ({"H7": torch.ones(4)}, "a layer such as L3"),
    ],
)
def test_values_that_fit_no_layer_are_refused(values, says):
    family = FAMILIES["bert"]
    model = family.build()
    with pytest.raises(MultiheadError, match=says), torch.no_grad(), HeadGate(model).acting(values):
        model(**family.inputs())


def test_a_layer_with_other_heads_than_it_states_is_told():
    family = FAMILIES["bert"]
    model = family.build()
    gate = HeadGate(model)
    gate.layers["L1"] = nn.Parameter(torch.ones(6))
    with pytest.raises(MultiheadError, match=r"6 gates of layer L1.*\n  got: 4 heads"), torch.no_grad(), gate.acting():
        model(**family.inputs())


def test_where_gates_cannot_begin():
    with pytest.raises(MultiheadError, match="a finite number at which all gates begin"):
        HeadGate(FAMILIES["bert"].build(), float("nan"))
    with pytest.raises(MultiheadError, match="found none"):
        HeadGate(nn.Linear(3, 3))
