"""Attention in graphs: torch.compile and torch.export see one operator that gives what the call gives without them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attend.oracle import near, qkv
from multihead.attend import Entmax, Sigmoid, Softmax, attention, attention_lse, tiled
from multihead.attend.compiled import traced
from multihead.error import MultiheadError
from multihead.native import load
from multihead.pattern import causal, document, padding, per_head, prefix
from multihead.position import ALiBi, RelativeTable, alibi_slopes

SCRIPT = Path(__file__).with_name("compiling.py")
OPERATOR = torch.ops.multihead.attention.default
WITH_LSE = torch.ops.multihead.attention_lse.default


def alone(code):
    """Runs Python in a process of its own, where nothing is checked and nothing of torch.compile is left behind."""
    run = subprocess.run([sys.executable, *code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")


def test_graphs_are_whole_and_give_the_same():
    alone([str(SCRIPT), "auto" if load() is None else "native"])


TRAINED = """
import torch
from multihead.attend import Softmax, attention, attention_lse
from multihead.native import load
from multihead.pattern import causal, sliding_window
from multihead import ALiBi, alibi_slopes
torch.set_num_threads(1)
q, k, v = torch.randn(2, 4, 6, 8, requires_grad=True), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
bias, sinks, slopes, scale = (torch.randn(*s, requires_grad=True) for s in ((6, 6), (4,), (4,), (4,)))
for options, leaves in (
    ({"mask": causal()}, [q]),
    ({"mask": sliding_window(2), "softcap": 2.0}, [q]),
    ({"bias": bias}, [q, bias]),
    ({"bias": ALiBi(slopes)}, [q, slopes]),
    ({"normaliser": Softmax(sinks=sinks)}, [q, sinks]),
    ({"mask": causal(), "backend": "reference"}, [q]),
    ({"mask": causal(), "scale": scale}, [q, scale]),
    ({"mask": causal(), "scale": scale, "with_lse": True}, [q, scale]),
    ({"mask": causal(), "normaliser": Softmax(sinks=sinks), "with_lse": True}, [q, sinks]),
):
    torch.compiler.reset()
    with_lse = options.pop("with_lse", False)
    def f(q):
        if not with_lse:
            return attention(q * 2, k, v, **options) + 1
        attended = attention_lse(q * 2, k, v, **options)
        return torch.cat([attended.out, attended.lse[..., None]], -1)
    results = [call(q) for call in (f, torch.compile(f, backend="aot_eager", fullgraph=True))]
    assert torch.equal(*results), options
    grads = [torch.autograd.grad(result.square().sum(), leaves) for result in results]
    assert all(map(torch.equal, *grads)), options
"""


def test_a_whole_graph_trains_as_no_graph_does():
    """The same backend runs, bit for bit, forward and backward."""
    alone(["-c", TRAINED])


IDS = torch.arange(20) // 3
OPTIONS = {
    "plain": {},
    "held": {"mask": causal() & document(IDS) & padding(IDS < 5)},
    "mapped": {"mask": prefix(3) | document(IDS).at(q_offset=2)},
    "heads": {"mask": per_head([causal(), causal(), prefix(2), causal()])},
    "tensor": {"mask": torch.rand(2, 1, 6, 6) < 0.7, "bias": torch.randn(6, 6), "scale": 0.3, "softcap": 2.0},
    "alibi": {"bias": ALiBi(alibi_slopes(4))},
    "table": {"bias": RelativeTable(torch.randn(8, 4), bidirectional=False, max_distance=9)},
    "sinks": {"normaliser": Softmax(sinks=torch.randn(4), off_by_one=True)},
    "sigmoid": {"normaliser": Sigmoid(-1.0)},
    "entmax": {"normaliser": Entmax(1.3)},
}
WITHOUT_LSE = ("sigmoid", "entmax")


def arguments(options, *, grad, backend="auto"):
    """What the operator is called with."""
    q, k, v = qkv(kv_len=6, grad=grad)
    every = dict.fromkeys(("mask", "bias", "scale", "softcap", "normaliser", "q_offset")) | options
    return tuple(traced(q, k, v, **every, backend=backend)[0])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_opcheck(name, grad):
    asked = arguments(OPTIONS[name], grad=grad)
    assert set(torch.library.opcheck(OPERATOR, asked).values()) == {"SUCCESS"}
    if name not in WITHOUT_LSE:
        assert set(torch.library.opcheck(WITH_LSE, asked).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backend", ["tiled", "reference"])
def test_the_operator_is_the_call_with_its_gradients(name, backend):
    asked = arguments(OPTIONS[name], grad=True, backend=backend)
    q, k, v = asked[:3]
    want = attention(q, k, v, **OPTIONS[name], backend=backend)
    got = OPERATOR(*asked)
    assert torch.equal(got, want)
    weights = torch.randn_like(got)
    for mine, theirs in zip(*(torch.autograd.grad(out, (q, k, v), weights) for out in (got, want)), strict=True):
        assert near(mine, theirs, 1e-6)


@pytest.mark.parametrize("of", ["both", "out", "lse"])
@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in WITHOUT_LSE])
@pytest.mark.parametrize("backend", ["sdpa", "tiled", "reference"])
def test_gradients_flow_from_the_lse_of_the_operator(name, backend, of):
    if backend == "sdpa" and "softcap" in OPTIONS[name]:
        backend = "auto"
    asked = arguments(OPTIONS[name], grad=True, backend=backend)
    q, k, v = asked[:3]
    plain = attention_lse(q, k, v, **OPTIONS[name], backend=backend)
    results = [WITH_LSE(*asked), (plain.out, plain.lse)]
    assert all(map(torch.equal, *results))
    weights = [
        torch.randn_like(part) if of in ("both", kind) else None
        for kind, part in zip(("out", "lse"), results[0], strict=True)
    ]
    losses = [
        sum((part * weight).sum() for part, weight in zip(parts, weights, strict=True) if weight is not None)
        for parts in results
    ]
    leaves = (q, k, v) if of != "lse" else (q, k)
    for mine, theirs in zip(*(torch.autograd.grad(loss, leaves) for loss in losses), strict=True):
        assert near(mine, theirs, 1e-6)


def test_second_derivatives_are_refused():
    asked = arguments({"mask": causal()}, grad=True)
    (grad,) = torch.autograd.grad(OPERATOR(*asked).square().sum(), asked[0], create_graph=True)
    with pytest.raises(MultiheadError, match=r'second derivatives .*\n.*\n  fix: call it with backend="reference"'):
        grad.sum().backward()


def test_what_is_wrong_is_said_when_the_graph_runs():
    asked = list(arguments({}, grad=False))
    asked[2] = asked[2][:, :, :5]
    with pytest.raises(MultiheadError, match="each key has one value"):
        OPERATOR(*asked)
    asked = list(arguments({"softcap": 1.0}, grad=False, backend="sdpa"))
    with pytest.raises(MultiheadError, match="its kernels have no softcap"):
        OPERATOR(*asked)


def test_an_output_is_never_a_view_of_an_input(monkeypatch):
    """Where a backend hands back what it was given, the operator copies it."""
    asked = arguments({}, grad=False, backend="tiled")
    monkeypatch.setattr(tiled, "run", lambda problem: (problem.q, None))
    out = OPERATOR(*asked)
    assert torch.equal(out, asked[0])
    assert out.data_ptr() != asked[0].data_ptr()
