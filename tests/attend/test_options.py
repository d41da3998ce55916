"""Every option changes the answer, alone and beside every other one, and the answer is the float64 one."""

import itertools

import pytest
import torch

from attend.oracle import near, qkv
from built import NATIVE
from multihead.attend import AUTOMATIC, Sigmoid, Softmax, Sparsemax, attention, define, find, make_problem
from multihead.pattern import causal, document, padding, sliding_window
from multihead.position import ALiBi, RelativeTable

LENGTH = 8


def options():
    """One value of each kind; names with the same first word exclude each other."""
    torch_bias = torch.randn(1, 4, LENGTH, LENGTH)
    return {
        "mask causal": {"mask": causal()},
        "mask window": {"mask": sliding_window(3)},
        "mask documents": {"mask": document(torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2]))},
        "mask padding": {"mask": padding(torch.tensor([[1] * 6 + [0] * 2, [0] * 3 + [1] * 5]).bool())},
        "mask tensor": {"mask": torch.rand(2, 4, LENGTH, LENGTH) < 0.7},
        "bias tensor": {"bias": torch_bias},
        "bias alibi": {"bias": ALiBi(torch.rand(4) + 0.3)},
        "bias table": {"bias": RelativeTable(torch.randn(8, 4), max_distance=6)},
        "scale": {"scale": 0.9},
        "softcap": {"softcap": 0.7},
        "normaliser sinks": {"normaliser": Softmax(sinks=torch.randn(4))},
        "normaliser off by one": {"normaliser": Softmax(off_by_one=True)},
        "normaliser sigmoid": {"normaliser": Sigmoid(-0.5)},
        "normaliser sparsemax": {"normaliser": Sparsemax()},
        "offset": {"q_offset": 2},
    }


NAMES = list(options())
PAIRS = [(a, b) for a, b in itertools.combinations(NAMES, 2) if a.split()[0] != b.split()[0]]
POSITIONAL = {"mask causal", "mask window", "bias alibi", "bias table"}


def exact(q, k, v, given):
    return define(make_problem(q.double(), k.double(), v.double(), **given))[0]


def runs(q, k, v, given):
    """The result of each backend that can, and of "auto"."""
    problem = make_problem(q, k, v, **given)
    able = [backend.NAME for backend in AUTOMATIC if not backend.why_not(problem)]
    return {name: attention(q, k, v, **given, backend=name) for name in ("auto", *able)}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "offset"])
def test_10_alone(name):
    q, k, v = qkv(q_len=LENGTH, kv_len=LENGTH)
    given = options()[name]
    plain = attention(q, k, v)
    for result in runs(q, k, v, given).values():
        assert near(result, exact(q, k, v, given))
        assert not near(result, plain, 1e-3)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a} + {b}" for a, b in PAIRS])
def test_10_in_pairs(first, second):
    q, k, v = qkv(q_len=LENGTH, kv_len=LENGTH)
    values = options()
    given = values[first] | values[second]
    for result in runs(q, k, v, given).values():
        assert near(result, exact(q, k, v, given))
        if "offset" not in (first, second) or {first, second} & POSITIONAL:
            assert not near(result, attention(q, k, v, **values[first]), 1e-3)
            assert not near(result, attention(q, k, v, **values[second]), 1e-3)


KEPT_CAUSAL = {
    "plain": {},
    "scale": {"scale": 0.9},
    "softcap": {"softcap": 0.7},
    "bias": {"bias": torch.zeros(1, 1)},
    "alibi": {"bias": ALiBi(torch.ones(4))},
    "sinks": {"normaliser": Softmax(sinks=torch.zeros(4))},
    "sigmoid": {"normaliser": Sigmoid()},
    "sparsemax": {"normaliser": Sparsemax()},
    "dropout": {"dropout": 0.3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", NATIVE, "sdpa", "tiled", "reference"])
@pytest.mark.parametrize("name", KEPT_CAUSAL)
@pytest.mark.parametrize("joined", [False, True], ids=["causal", "causal and padding"])
def test_09_no_option_lets_the_future_in(name, backend, dtype, joined):
    """Everything from token t on is replaced by huge numbers; what came before it is bit-equal."""
    q, k, v = qkv(q_len=LENGTH, kv_len=LENGTH, dtype=dtype)
    given = KEPT_CAUSAL[name] | {"mask": causal() & padding(torch.ones(LENGTH).bool()) if joined else causal()}
    if backend != "auto" and find(backend).why_not(make_problem(q, k, v, **given)):
        backend = "auto"
    t = 5

    def run(q, k, v):
        torch.manual_seed(0)
        return attention(q, k, v, **given, backend=backend)

    before, changed = run(q, k, v), [x.clone() for x in (q, k, v)]
    for x in changed:
        x[:, :, t:] = 1e4 * torch.randn_like(x[:, :, t:])
    after = run(*changed)
    assert torch.equal(before[:, :, :t], after[:, :, :t])
    assert not torch.equal(before[:, :, t:], after[:, :, t:])
