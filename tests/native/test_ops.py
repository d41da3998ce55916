"""The operator: what torch asks of one (opcheck), what its door refuses, and that it changes nothing it is given."""

import pytest
import torch

from built import needs_kernel
from multihead.attend import Softmax, define, make_problem, native
from multihead.attend.lowering import bias_parts, mask_parts, sink_logits
from multihead.error import MultiheadError
from multihead.native import ops
from multihead.native.ops import native_forward
from multihead.pattern import causal, document, padding, per_head, prefix, sliding_window
from multihead.position import ALiBi, RelativeTable, alibi_slopes

pytestmark = needs_kernel


def qkv(dtype=torch.float32, length=70, keys=130):
    return [
        torch.randn(2, heads, n, dim, dtype=dtype) for heads, n, dim in ((4, length, 16), (2, keys, 16), (2, keys, 24))
    ]


def given(problem):
    """The arguments a problem becomes."""
    mask, bias = mask_parts(problem), bias_parts(problem)
    numbers = [problem.scale, problem.softcap or 0.0, problem.q_offset or 0, bias.first]
    return (problem.q, problem.k, problem.v, mask.tensors(), bias.tensors(), sink_logits(problem), *numbers, 0, 0)


ids = torch.arange(400) // 50
PROBLEMS = {
    "plain": {},
    "causal": {"mask": causal(), "q_offset": 60},
    "heads, documents, keys": {
        "mask": per_head([causal(), causal(), sliding_window(3), causal()]) & document(ids) & padding(ids < 7),
        "q_offset": 60,
    },
    "map": {"mask": prefix(90), "q_offset": 3},
    "tensor": {"mask": torch.rand(2, 1, 70, 130) < 0.5},
    "bias, softcap": {"bias": torch.randn(1, 4, 70, 1).bfloat16(), "softcap": 3.0},
    "slopes, sinks": {"bias": ALiBi(alibi_slopes(4)), "normaliser": Softmax(sinks=torch.randn(4)), "q_offset": -9},
    "table": {"bias": RelativeTable(torch.randn(8, 4)), "q_offset": 4},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_opcheck(name, dtype):
    arguments = given(make_problem(*qkv(dtype), **PROBLEMS[name]))
    assert set(torch.library.opcheck(native_forward, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", PROBLEMS)
def test_nothing_is_written_to_what_is_given(name):
    arguments = given(make_problem(*qkv(), **PROBLEMS[name]))
    flat = [
        part
        for one in arguments
        for part in (one if isinstance(one, list) else [one])
        if isinstance(part, torch.Tensor)
    ]
    before = [part.clone() for part in flat]
    native_forward(*arguments)
    assert all(torch.equal(part, old) for part, old in zip(flat, before, strict=True))


def test_no_parts_are_no_mask_and_no_bias():
    q, k, v = qkv()
    bare = native_forward(q, k, v, [], [], None, 0.25, 0.0, 0, 0, 0, 0)
    empty = native_forward(q, k, v, [None] * 8, [None] * 3, None, 0.25, 0.0, 0, 0, 0, 0)
    want = define(make_problem(q, k, v, scale=0.25))[0]
    assert torch.equal(bare[0], empty[0])
    assert torch.allclose(bare[0], want, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 0, 5), (2, 4, 0)])
@pytest.mark.parametrize("keys", [0, 3])
def test_nothing_to_compute(shape, keys):
    batch, heads, q_len = shape
    q, k = torch.randn(batch, heads, q_len, 8), torch.randn(batch, heads // 2, keys, 8)
    for mask in (None, causal(), document(ids), prefix(2), padding(ids < 2), torch.ones(q_len, keys).bool()):
        out, lse = native.run(make_problem(q, k, k, mask=mask, bias=torch.zeros(q_len, keys), q_offset=0))
        assert out.shape == (*shape, 8)
        assert lse.shape == shape


def test_views_that_are_negated_in_passing_are_read_rightly():
    """torch keeps the imaginary part of a conjugate as a view with a bit that says minus."""
    q = torch.randn(1, 1, 5, 8, dtype=torch.complex64).conj().imag
    assert q.is_neg()
    assert torch.allclose(
        native.run(make_problem(q, q, q))[0], define(make_problem(*[q.resolve_neg()] * 3))[0], atol=1e-5
    )


def test_a_gradient_that_is_asked_for_is_refused():
    arguments = list(given(make_problem(*qkv())))
    for place, leaf in ((0, arguments[0]), (5, torch.zeros(4)), (4, torch.zeros(4))):
        asked = list(arguments)
        asked[place] = [leaf.clone().requires_grad_(), None, None] if place == 4 else leaf.clone().requires_grad_()
        with pytest.raises(
            MultiheadError, match=r"gradients through .*native_forward\n  got: tensors that require a grad"
        ):
            native_forward(*asked)
        with torch.no_grad():
            native_forward(*asked)


def test_compiled_it_refuses_a_gradient_as_well():
    arguments = given(make_problem(*qkv()))

    def f(q):
        return native_forward(q * 2, *arguments[1:])[0].sum()

    q = arguments[0].clone().requires_grad_()
    with pytest.raises(Exception, match=r"gradients through torch\.ops\.multihead\.native_forward"):
        torch.compile(f, backend="aot_eager", fullgraph=True)(q).backward()


def test_without_the_kernel(monkeypatch):
    monkeypatch.setattr(ops, "load", lambda: None)
    monkeypatch.setattr(ops, "why_none", lambda: "compiled kernel not built")
    with pytest.raises(MultiheadError, match=r"by the compiled kernel\n  got: compiled kernel not built\n  fix: call"):
        native_forward(*given(make_problem(*qkv())))


LIES = {
    "q of three dimensions": (lambda a: a.update(q=a["q"][0]), r"q \(batch, heads.*\n  got: q \(4, 70, 16\)"),
    "other keys than values": (lambda a: a.update(v=a["v"][:, :, :9]), r"kv_heads a divisor.*v \(2, 2, 9, 24\)"),
    "another batch": (lambda a: a.update(k=a["k"][:1], v=a["v"][:1]), r"k \(1, 2, 130, 16\)"),
    "another head_dim": (lambda a: a.update(q=a["q"][..., :9]), r"q \(2, 4, 70, 9\)"),
    "heads that do not divide": (lambda a: a.update(q=a["q"][:, :3]), r"q \(2, 3, 70, 16\)"),
    "no kv heads": (lambda a: a.update(k=a["k"][:, :0], v=a["v"][:, :0]), r"k \(2, 0, 130, 16\)"),
    "too wide": (lambda a: a.update(v=torch.randn(2, 2, 130, 513)), r"up to 512\n  got: .*v \(2, 2, 130, 513\)"),
    "float64": (lambda a: a.update({n: a[n].double() for n in "qkv"}), r"float16\n  got: q torch.float64"),
    "two dtypes": (lambda a: a.update(v=a["v"].half()), r"of one dtype.*\n  got: .*v torch.float16"),
    "gaps": (
        lambda a: a.update(q=a["q"].mT.contiguous().mT),
        r"q whose columns follow one another\n  got: a stride of 70",
    ),
    "window of other heads": (
        lambda a: a["mask"].update(window=torch.zeros(1, 3, 2).long()),
        r"window of shape \(2 or 1, 4 or",
    ),
    "window of int32": (
        lambda a: a["mask"].update(window=torch.zeros(1, 1, 2).int()),
        r"window .*int64.*\n  got: .*int32",
    ),
    "ids of queries alone": (lambda a: a["mask"].update(q_ids=torch.zeros(1, 70).int()), r"together\n  got: no k_ids"),
    "ids of keys alone": (lambda a: a["mask"].update(k_ids=torch.zeros(1, 130).int()), r"together\n  got: no q_ids"),
    "too few ids": (
        lambda a: a["mask"].update(q_ids=torch.zeros(1, 69).int(), k_ids=torch.zeros(1, 130).int()),
        r"q_ids of shape \(2 or 1, 70\), int32, on the CPU\n  got: \(1, 69\) int32",
    ),
    "one id for all": (
        lambda a: a["mask"].update(q_ids=torch.zeros(1, 70).int(), k_ids=torch.zeros(1, 1).int()),
        r"k_ids of shape \(2 or 1, 130\)",
    ),
    "ids with gaps": (
        lambda a: a["mask"].update(q_ids=torch.zeros(1, 140).int()[:, ::2], k_ids=torch.zeros(1, 130).int()),
        r"q_ids whose numbers follow one another\n  got: a stride of 2",
    ),
    "keys as numbers": (lambda a: a["mask"].update(keep=torch.ones(2, 130).byte()), r"keep .*bool.*\n  got: .*uint8"),
    "a mask of other keys": (
        lambda a: a["mask"].update(dense=torch.ones(1, 1, 70, 129).bool()),
        r"dense mask of shape",
    ),
    "a mask of two dimensions": (lambda a: a["mask"].update(dense=torch.ones(70, 130).bool()), r"dense mask of shape"),
    "a map without bits": (lambda a: a["mask"].pop("tile_bits"), r"and tile_bits\n  got: .*None"),
    "a map without classes": (lambda a: a["mask"].pop("tile_class"), r"a tile map.*\n  got: None"),
    "a map of other sizes": (
        lambda a: a["mask"].update(tile_class=torch.zeros(1, 1, 3, 3).to(torch.int8)),
        r"tile_class of shape \(2 or 1, 4 or 1, 2, 3\), int8",
    ),
    "a map of two shapes": (
        lambda a: a["mask"].update(tile_class=a["mask"]["tile_class"].expand(2, 1, 2, 3).contiguous()),
        r"of one shape",
    ),
    "classes of int32": (
        lambda a: a["mask"].update(tile_class=a["mask"]["tile_class"].int()),
        r"int8, on the CPU\n.*int32",
    ),
    "bits of bytes": (lambda a: a["mask"].update(tile_bits=a["mask"]["tile_bits"].byte()), r"tile_bits .*int64"),
    "narrow bits": (
        lambda a: a["mask"].update(tile_bits=a["mask"]["tile_bits"][:, :8]),
        r"tile_bits of shape \(\d, 64\)",
    ),
    "a map with gaps": (
        lambda a: a["mask"].update(tile_class=a["mask"]["tile_class"].mT.contiguous().mT),
        r"tile_class without gaps between its numbers\n  got: strides",
    ),
    "a class of 3": (
        lambda a: a["mask"].update(tile_class=torch.full((1, 1, 2, 3), 3, dtype=torch.int8)),
        r"compiled kernel\n  got: a mask that contradicts itself",
    ),
    "a place beyond the bits": (
        lambda a: a["mask"].update(
            tile_class=torch.ones(1, 1, 2, 3, dtype=torch.int8),
            tile_index=torch.full((1, 1, 2, 3), 99, dtype=torch.int32),
        ),
        r"compiled kernel\n  got: a mask that contradicts itself",
    ),
    "seven parts": (lambda a: a["mask"].update(window=...), r"the 8 parts of a mask.*\n  got: 7"),
    "slopes of other heads": (lambda a: a["bias"].update(slopes=torch.zeros(3)), r"slopes of shape \(4\), float32"),
    "slopes of one": (lambda a: a["bias"].update(slopes=torch.zeros(1)), r"slopes of shape \(4\)"),
    "an empty table": (
        lambda a: a["bias"].update(table=torch.zeros(4, 0)),
        r"table of shape \(4, 1\), float32, on the CPU\n  got: \(4, 0\)",
    ),
    "a table of one head": (lambda a: a["bias"].update(table=torch.zeros(1, 9)), r"table of shape \(4, 9\)"),
    "a flat table": (lambda a: a["bias"].update(table=torch.zeros(9)), r"table of shape"),
    "a bias of float64": (
        lambda a: a["bias"].update(dense=torch.zeros(1, 1, 70, 130).double()),
        r"dense bias .*float32 or bfloat16 or float16.*\n  got: .*float64",
    ),
    "two parts of a bias": (lambda a: a["bias"].update(slopes=...), r"the 3 parts of a bias.*\n  got: 2"),
    "sinks of other heads": (lambda a: a.update(sinks=torch.zeros(3)), r"sinks of shape \(4\), float32"),
    "sinks of bfloat16": (lambda a: a.update(sinks=torch.zeros(4).bfloat16()), r"sinks .*float32.*\n  got: .*bfloat16"),
    "a scale without bounds": (
        lambda a: a.update(scale=float("inf")),
        r"a scale, softcap or offset that is not finite",
    ),
    "a negative softcap": (lambda a: a.update(softcap=-1.0), r"a scale, softcap or offset"),
    "a variant there is none of": (lambda a: a.update(variant=9), r"a variant that was not compiled in"),
    "less than no thread": (lambda a: a.update(threads=-1), r"a size is negative"),
}
MASK = ("window", "q_ids", "k_ids", "keep", "dense", "tile_class", "tile_index", "tile_bits")


@pytest.mark.parametrize("name", LIES)
def test_the_door_refuses(name):
    """Every message says which part is wrong, what was asked and what came."""
    lie, told = LIES[name]
    tiles = mask_parts(make_problem(*qkv(), mask=prefix(90), q_offset=0))
    parts = dict(zip(MASK, tiles.tensors(), strict=True))
    q, k, v = qkv()
    asked = {"q": q, "k": k, "v": v, "mask": parts, "bias": dict.fromkeys(("slopes", "table", "dense")), "sinks": None}
    asked |= {"scale": 0.25, "softcap": 0.0, "q_offset": 0, "table_first": 0, "threads": 1, "variant": 0}
    lie(asked)
    mask = [parts.get(part) for part in MASK if parts.get(part) is not ...]
    bias = [part for part in asked["bias"].values() if part is not ...]
    asked |= {"mask": mask, "bias": bias}
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        native_forward(*asked.values())
