"""Arguments that are no numbers where numbers are due, and a scale that is a tensor, on every backend."""

import jaxtyping
import numpy as np
import pytest
import torch

from attend.oracle import attend_slowly, near, qkv
from built import NATIVE
from multihead.attend import Sigmoid, attention, attention_lse, explain_backend
from multihead.error import MultiheadError
from multihead.layer import MultiHeadAttention
from multihead.pattern import causal

BACKENDS = ["auto", NATIVE, "sdpa", "tiled", "reference"]


@pytest.fixture
def untyped(monkeypatch):
    """As users call it, whose calls no types are checked of."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


WRONG = {
    "scale, text": ({"scale": "a"}, "a finite scale", "scale=str 'a'", "pass a number, a tensor, or None"),
    "scale, truth": ({"scale": True}, "a finite scale", "scale=bool 'True'", "pass a number"),
    "scale, list": ({"scale": [1.0]}, "a finite scale", "scale=list '[1.0]'", "pass a number"),
    "scale, nan": ({"scale": float("nan")}, "a finite scale", "scale=nan", "pass a number"),
    "scale, more than a float": ({"scale": 10**400}, "a finite scale", "scale=int '1000", "pass a number"),
    "softcap, more than a float": ({"softcap": 10**400}, "softcap * tanh", "softcap=int '1000", "pass softcap > 0"),
    "dropout, more than a float": ({"dropout": 10**400}, "0 <= dropout < 1", "dropout=int", "pass a share below 1"),
    "softcap, text": ({"softcap": "x"}, "softcap * tanh", "softcap=str 'x'", "pass softcap > 0"),
    "softcap, tensor": (
        {"softcap": torch.tensor(2.0)},
        "softcap * tanh",
        "softcap=Tensor 'tensor(2.)'",
        "pass `float(softcap)`; it gets no gradient",
    ),
    "dropout, text": ({"dropout": "x"}, "0 <= dropout < 1", "dropout=str 'x'", "pass a share below 1"),
    "dropout, 2": ({"dropout": 2}, "0 <= dropout < 1", "dropout=2", "pass a share below 1"),
    "dropout, None": ({"dropout": None}, "0 <= dropout < 1", "dropout=NoneType 'None'", "pass a share below 1"),
    "dropout, tensor": (
        {"dropout": torch.tensor([0.1, 0.2])},
        "0 <= dropout < 1",
        "dropout=Tensor",
        "pass `float(dropout)`; it gets no gradient",
    ),
    "q_offset, 1.5": ({"q_offset": 1.5}, "a whole number", "q_offset=float '1.5'", "pass a whole number"),
    "q_offset, 1.0": ({"q_offset": 1.0}, "a whole number", "q_offset=float '1.0'", "pass a whole number"),
    "q_offset, text": ({"q_offset": "1"}, "a whole number", "q_offset=str '1'", "pass a whole number"),
    "q_offset, truth": ({"q_offset": True}, "a whole number", "q_offset=bool 'True'", "pass a whole number"),
    "q_offset, tensor": ({"q_offset": torch.tensor(1.0)}, "a whole number", "q_offset=Tensor", "pass a whole number"),
    "backend, list": ({"backend": ["sdpa"]}, "a backend of this library", "backend=['sdpa']", 'pass "auto" or one of'),
    "backend, None": ({"backend": None}, "a backend of this library", "backend=None", 'pass "auto" or one of'),
    "backend, name": ({"backend": "flash"}, "a backend of this library", "backend='flash'", 'pass "auto" or one of'),
    "normaliser, text": (
        {"normaliser": "softmax"},
        "normaliser as one of",
        "normaliser='softmax' (str)",
        "pass one of",
    ),
    "normaliser, class": ({"normaliser": Sigmoid}, "normaliser as one of", "Sigmoid", "pass one of Softmax()"),
    "mask, list": (
        {"mask": [[True]]},
        "mask as a pattern or a boolean tensor",
        "mask=[[True]] (list)",
        "parse_pattern",
    ),
    "bias, number": (
        {"bias": 1.0},
        "bias as a tensor, ALiBi, RelativeTable or AdaptiveSpan",
        "bias=1.0 (float)",
        "pass a tensor",
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("call", [attention, attention_lse, explain_backend])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_number_and_no_name_is_refused_in_words(name, call):
    options, asked, arrived, remedy = WRONG[name]
    with pytest.raises(MultiheadError) as caught:
        call(*qkv(kv_len=6), **options)
    assert asked in caught.value.asked
    assert arrived in caught.value.arrived
    assert remedy in caught.value.remedy


@pytest.mark.usefixtures("untyped")
def test_numbers_of_other_kinds_are_numbers():
    q, k, v = qkv()
    want = attention(q, k, v, mask=causal(), scale=0.5, softcap=2.0, q_offset=1)
    for whole in (np.int64(1), torch.tensor(1)):
        got = attention(q, k, v, mask=causal(), scale=np.float32(0.5), softcap=2, dropout=0, q_offset=whole)
        assert torch.equal(got, want)
    assert torch.equal(attention(q, k, v, scale=2), attention(q, k, v, scale=2.0))


def shapes(scale):
    """All the shapes of one scale: a number, one a head, one a query."""
    return {
        "one": (scale[0, 0, 0, 0], scale[:1, :1, :1]),
        "a 1-D one": (scale[0, 0, 0], scale[:1, :1, :1]),
        "heads": (scale[0, :, 0, 0], scale[:1, :, :1]),
        "batch": (scale[:, :1, :1], scale[:, :1, :1]),
        "queries": (scale[:1, :1], scale[:1, :1]),
        "all": (scale, scale),
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["one", "a 1-D one", "heads", "batch", "queries", "all"])
def test_a_scale_that_is_a_tensor_is_one_for_each_head_and_query(name, backend):
    q, k, v = qkv()
    given, four = shapes(torch.rand(2, 4, 6, 1) + 0.3)[name]
    attended = attention_lse(q, k, v, scale=given, backend=backend)
    out, lse, weights = attend_slowly(q.double() * four.double(), k, v, scale=1.0)
    assert near(attended.out, out)
    assert near(attended.lse, lse)
    assert near(attended.weights(), weights)
    assert near(attention(q, k, v, scale=given, backend=backend), out)


@pytest.mark.parametrize("backend", ["auto", "sdpa", "tiled", "reference"])
@pytest.mark.parametrize("name", ["one", "heads", "queries", "all"])
def test_a_scale_gets_its_gradient(name, backend):
    q, k, v = qkv(kv_len=6)
    given, _ = shapes(torch.rand(2, 4, 6, 1) + 0.3)[name]
    grads = []
    for kind, way in ((torch.float32, backend), (torch.float64, "reference")):
        leaf = given.detach().to(kind).requires_grad_()
        attended = attention_lse(q.to(kind), k.to(kind), v.to(kind), mask=causal(), scale=leaf, backend=way)
        torch.manual_seed(0)
        weights = torch.randn(attended.out.shape).to(kind)
        loss = (attended.out * weights).sum() + attended.lse.sum()
        grads.append(torch.autograd.grad(loss, leaf)[0])
    assert grads[0].shape == given.shape
    assert float(grads[1].abs().max()) > 1e-3
    assert near(grads[0], grads[1], 1e-4)


def test_the_gradient_of_a_scale_is_the_slope():
    q, k, v = qkv(dtype=torch.float64)
    scale = (torch.rand(4, dtype=torch.float64) + 0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda scale: attention(q, k, v, scale=scale, backend="tiled"), scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_queries_are_rounded_once(dtype):
    q, k, v = qkv(dtype=dtype)
    scale = torch.rand(4) + 0.3
    want = attention((q.double() * scale.double()[:, None, None]).to(dtype), k, v, scale=1.0)
    assert torch.equal(attention(q, k, v, scale=scale), want)
    assert torch.equal(attention(q, k, v, scale=scale.double()), want)


@pytest.mark.parametrize(
    "scale",
    [
        torch.rand(3),
        torch.rand(2, 4),
        torch.rand(4, 1, 1),
        torch.rand(1, 1, 1, 8),
        torch.rand(1, 3, 1, 1),
        torch.ones(4).int(),
    ],
    ids=lambda scale: f"{tuple(scale.shape)} {scale.dtype}",
)
@pytest.mark.usefixtures("untyped")
def test_a_scale_of_another_shape_is_refused(scale):
    with pytest.raises(MultiheadError) as caught:
        attention(*qkv(), scale=scale)
    assert "(batch, heads, q_len, 1) = (2, 4, 6, 1)" in caught.value.asked
    assert "one for each head (4,)" in caught.value.asked
    assert str(tuple(scale.shape)) in caught.value.arrived
    assert "reshape it" in caught.value.remedy


@pytest.mark.usefixtures("untyped")
def test_the_module_refuses_in_the_same_words():
    layer = MultiHeadAttention(8, heads=2)
    with pytest.raises(MultiheadError, match="q_offset: the position of the first query, a whole number"):
        layer(torch.randn(1, 3, 8), q_offset=1.5)
    with pytest.raises(MultiheadError, match="a backend of this library"):
        MultiHeadAttention(8, heads=2, backend=["sdpa"])(torch.randn(1, 3, 8))


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("place", range(3))
def test_tensors_of_another_layout(place):
    dense = list(qkv())
    jagged = torch.nested.nested_tensor(list(dense[place]), layout=torch.jagged)
    for other, told in ((dense[place].to_sparse(), "torch.sparse_coo"), (jagged, "torch.jagged")):
        given = [other if at == place else x for at, x in enumerate(dense)]
        with pytest.raises(MultiheadError, match=f"dense tensors as q, k and v\n  got: .*{'qkv'[place]} {told}"):
            attention(*given)
