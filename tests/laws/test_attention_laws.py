"""Laws of the function `attention`: every option, alone and with others, on every backend that claims the problem."""

import itertools
from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.autograd import gradcheck

from attend.oracle import near
from built import NATIVE
from laws.options import NAMES, Sizes, kind, options
from laws.oracle import attend, table
from multihead.attend import attention, attention_lse, explain_backend, find, make_problem
from multihead.error import BackendRefused
from multihead.native import load
from multihead.pattern import causal, padding, per_head

BACKENDS = ["reference", "tiled", "sdpa", NATIVE]
AVAILABLE = ["reference", "tiled", "sdpa", *(["native"] if load() else [])]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
WIDE = torch.float64
TRAINED = ["reference", "tiled", "sdpa"]


def dtype_of(backend):
    return torch.float32 if backend == "native" else WIDE


def limit(backend):
    return 2e-5 if backend == "native" else 1e-10


def claims(backend, q, k, v, **given):
    """Whether the backend can run it; one that says it cannot then does not, in so many words."""
    reasons = find(backend).why_not(make_problem(q, k, v, **given))
    if reasons:
        with pytest.raises(BackendRefused) as told:
            attention(q, k, v, **given, backend=backend)
        assert told.value.reasons == {backend: tuple(reasons)}
    return not reasons


def joined(*chosen):
    """Several options as keywords for the library and words for the oracle."""
    given, told = {}, {}
    for option in chosen:
        given, told = given | option.given, told | option.told
    return given, told


PAIRS = [(a, b) for a, b in itertools.combinations(NAMES, 2) if kind(a) != kind(b)]


@pytest.mark.parametrize("name", NAMES)
def test_an_option_counts_alone_and_beside_every_other_one(name):
    """At sizes of which no two are equal; the answer is the oracle's, and each of the two is in it."""
    sizes = Sizes()
    qkv, values = sizes.qkv(torch.float32), options(sizes, torch.float32)
    runs = Counter()
    for first, second in [(name, name), *((a, b) for a, b in PAIRS if a == name)]:
        given, told = joined(values[first], values[second])
        want, weights = attend(*qkv, **told, first=sizes.first)
        without = [joined(values[other])[0] for other in {first, second} - {name}] or [{}]
        without += [joined(values[name])[0]] if first != second else []
        for backend in AVAILABLE:
            inputs = [x.to(dtype_of(backend)) for x in qkv]
            if claims(backend, *inputs, **given, q_offset=sizes.first):
                runs[backend] += 1
                got = attention_lse(*inputs, **given, q_offset=sizes.first, backend=backend)
                assert near(got.out, want, limit(backend)), (backend, second)
                assert near(got.weights(), weights, limit(backend)), (backend, second)
        for rest in without:
            assert not near(want, attention(*qkv, **rest, q_offset=sizes.first), 1e-3), second
    assert runs["tiled"] == runs["reference"] > 0


@st.composite
def several(draw):
    """Sizes, and one option of some kinds."""
    kv_heads, q_len, kv_len = draw(st.integers(1, 2)), draw(st.integers(1, 7)), draw(st.integers(1, 7))
    sizes = Sizes(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=draw(st.integers(1, 9)),
        v_head_dim=draw(st.integers(1, 9)),
        first=draw(st.integers(0, 7)),
    )
    chosen = []
    for each in sorted({kind(name) for name in NAMES}):
        chosen += draw(st.lists(st.sampled_from([name for name in NAMES if kind(name) == each]), max_size=1))
    return sizes, chosen


def held_to_the_oracle(drawn, backends):
    sizes, chosen = drawn
    for backend in backends:
        dtype = dtype_of(backend)
        qkv, values = sizes.qkv(dtype), options(sizes, dtype)
        given, told = joined(*(values[name] for name in chosen))
        if claims(backend, *qkv, **given, q_offset=sizes.first):
            want, weights = attend(*qkv, **told, first=sizes.first)
            got = attention_lse(*qkv, **given, q_offset=sizes.first, backend=backend)
            assert near(got.out, want, limit(backend))
            assert near(got.weights(), weights, limit(backend))
            auto = attention_lse(*qkv, **given, q_offset=sizes.first)
            assert near(auto.out, want, limit(backend) if auto.backend == backend else 1e-4)


@settings(max_examples=40)
@given(several())
def test_any_options_at_any_sizes(drawn):
    held_to_the_oracle(drawn, AVAILABLE)


@settings(max_examples=2)
@given(several())
def test_any_options_at_any_sizes_by_flex(drawn):
    held_to_the_oracle(drawn, ["flex"])


@pytest.mark.slow
@settings(max_examples=300)
@given(several())
def test_any_options_at_any_sizes_by_flex_often(drawn):
    held_to_the_oracle(drawn, ["flex"])


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("name", ["", *NAMES])
def test_dropout_drops_weights_whole_and_by_the_seed(name, backend):
    """With the unit matrix as values the output is the weights: 0, or the clean weight / (1 - p)."""
    sizes = Sizes(batch=3, kv_len=9, q_len=9, v_head_dim=9)
    q, k, _ = sizes.qkv()
    v = torch.eye(9, dtype=WIDE).expand(3, 2, 9, 9)
    chosen = options(sizes)[name].given if name else {}

    def run(seed, dropout):
        torch.manual_seed(seed)
        return attention(q, k, v, **chosen, q_offset=sizes.first, dropout=dropout, backend=backend)

    clean, first, again, other = run(1, 0.0), run(1, 0.4), run(1, 0.4), run(2, 0.4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    dropped = (first == 0) & (clean > 0)
    assert near(first, (clean / 0.6).where(~dropped, 0.0), 1e-12)
    share = float(dropped.sum() / (clean > 0).sum())
    assert 0.4 - 6 * 0.5 / float((clean > 0).sum()) ** 0.5 < share < 0.4 + 6 * 0.5 / float((clean > 0).sum()) ** 0.5


@pytest.mark.parametrize("backend", TRAINED)
@pytest.mark.parametrize("name", ["", *NAMES])
def test_gradients_are_those_of_differences(name, backend):
    """Of q, k, v and of what an option holds, through the output and the log-sum-exp."""
    sizes = Sizes(batch=1, heads=2, kv_heads=1, q_len=3, kv_len=3, head_dim=2, v_head_dim=2, first=0)
    option = options(sizes)[name].given if name else {}
    rebuilt = dict(option)
    learned = [held for held in map(learnable, option.values()) if held is not None]

    def run(q, k, v, *held):
        for key, value in option.items():
            rebuilt[key] = value if not held else with_tensor(value, held[0])
        got = attention_lse(q, k, v, **rebuilt, q_offset=0, backend=backend)
        return got.out if got.lse is None else (got.out, got.lse.nan_to_num(neginf=0.0))

    inputs = tuple(x.clone().requires_grad_() for x in (*sizes.qkv(), *learned))
    if not claims(backend, *inputs[:3], **dict(option), q_offset=0) or (
        learned and backend == "sdpa" and "bias" in name
    ):
        assert backend == "sdpa"
        return
    assert gradcheck(run, inputs, fast_mode=name not in ("", "softcap"))


def learnable(value):
    """The tensor of an option that may be trained."""
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() and value.isfinite().all() else None
    return getattr(value, "weight", None) if hasattr(value, "with_weight") else getattr(value, "sinks", None)


def with_tensor(value, held):
    if isinstance(value, torch.Tensor):
        return held
    if hasattr(value, "with_weight"):
        return value.with_weight(held)
    return type(value)(sinks=held, off_by_one=value.off_by_one)


def huge(x, t):
    """The same up to t, and enormous numbers behind it."""
    return torch.cat([x[:, :, :t], 1e4 * torch.randn_like(x[:, :, t:])], 2)


@every_backend
@pytest.mark.parametrize("name", ["", *(name for name in NAMES if kind(name) != "mask")])
def test_the_future_changes_no_bit(name, backend):
    sizes = Sizes(q_len=7, kv_len=7, first=0)
    qkv = sizes.qkv(dtype_of(backend))
    given = {"mask": causal()} | (options(sizes, dtype_of(backend))[name].given if name else {})
    if claims(backend, *qkv, **given):
        before, after = (attention_lse(*x, **given, backend=backend) for x in (qkv, [huge(x, 4) for x in qkv]))
        assert torch.equal(before.out[:, :, :4], after.out[:, :, :4])
        assert not torch.equal(before.out[:, :, 4:], after.out[:, :, 4:])
        assert before.lse is None or torch.equal(before.lse[:, :, :4], after.lse[:, :, :4])


@every_backend
@pytest.mark.parametrize("name", ["", *(name for name in NAMES if kind(name) not in ("mask", "bias"))])
def test_padding_changes_nothing(name, backend):
    """Whatever stands behind the keys that are kept: the answer is that of the keys alone."""
    sizes = Sizes(first=0, q_len=5, kv_len=5)
    qkv = sizes.qkv(dtype_of(backend))
    given = options(sizes, dtype_of(backend))[name].given if name else {}
    if not claims(backend, *qkv, **given):
        return
    want = attention(*qkv, **given, backend=backend)
    k, v = (torch.cat([x, 1e5 * torch.randn_like(x[:, :, :3])], 2) for x in qkv[1:])
    keep = (torch.arange(8) < 5).expand(2, 8)
    for mask in (padding(keep), keep[:, None, None].contiguous()):
        assert near(attention(qkv[0], k, v, **given, mask=mask, backend=backend), want, limit(backend))


@every_backend
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_batch_and_groups_of_heads_may_stand_in_any_order(name, backend):
    sizes = Sizes(batch=3, heads=6, kv_heads=3)
    qkv = sizes.qkv(dtype_of(backend))
    given = options(sizes, dtype_of(backend))[name].given
    if not claims(backend, *qkv, **given, q_offset=sizes.first):
        return
    rows, groups = torch.randperm(3), torch.randperm(3)
    heads = (2 * groups[:, None] + torch.arange(2)).flatten()
    got = attention(*qkv, **given, q_offset=sizes.first, backend=backend)
    moved = [x[rows][:, heads if x.shape[1] == 6 else groups] for x in qkv]
    again = {key: rearranged(value, rows, heads) for key, value in given.items()}
    assert near(attention(*moved, **again, q_offset=sizes.first, backend=backend), got[rows][:, heads], limit(backend))


def rearranged(value, rows, heads):
    """An option for the same batch rows and heads in another order."""
    if isinstance(value, torch.Tensor):
        value = value if value.shape[0] == 1 else value[rows]
        return value if value.shape[1] == 1 else value[:, heads]
    if hasattr(value, "pick"):
        return value.pick(heads)
    if getattr(value, "heads", None) == len(heads):
        return per_head([value.parts[h] for h in heads.tolist()])
    if getattr(value, "batch", None) == len(rows):
        return value.mask(6, 7, q_offset=1)[rows]
    return value


@every_backend
@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_queries_equal_one_pass(name, backend):
    """Every option that can be cut by rows, in every split of five queries."""
    sizes = Sizes(q_len=5, kv_len=7, first=2)
    q, k, v = sizes.qkv(dtype_of(backend))
    given = options(sizes, dtype_of(backend))[name].given
    if not claims(backend, q, k, v, **given, q_offset=2):
        return
    whole = attention(q, k, v, **given, q_offset=2, backend=backend)
    for cuts in itertools.chain.from_iterable(itertools.combinations(range(1, 5), n) for n in (1, 2, 4)):
        edges = [0, *cuts, 5]
        parts = []
        for a, b in itertools.pairwise(edges):
            cut = {key: x[:, :, a:b] if isinstance(x, torch.Tensor) else x for key, x in given.items()}
            parts.append(attention(q[:, :, a:b], k, v, **cut, q_offset=2 + a, backend=backend))
        assert near(torch.cat(parts, 2), whole, limit(backend)), edges


@every_backend
@pytest.mark.parametrize("name", ["", *NAMES])
def test_every_path_gives_the_same(name, backend, monkeypatch):
    """With and without gradients, with and without weights, in other layouts, and in a graph."""
    sizes = Sizes(first=0, q_len=6, kv_len=6)
    qkv = sizes.qkv(dtype_of(backend))
    given = (options(sizes, dtype_of(backend))[name].given if name else {}) | {"backend": backend}
    if not claims(backend, *qkv, **{key: x for key, x in given.items() if key != "backend"}):
        return
    want = attention(*qkv, **given)
    attended = attention_lse(*qkv, **given)
    weights = attended.weights()
    assert attended.backend == backend
    assert torch.equal(attended.out, want)
    assert near(weights @ qkv[2].repeat_interleave(2, 1).to(weights), want, limit(backend))
    with torch.no_grad():
        assert near(attention(*qkv, **given), want, limit(backend))
    with torch.inference_mode():
        assert near(attention(*qkv, **given), want, limit(backend))
    learned = [x.detach().requires_grad_() for x in qkv]
    if explain_backend(*learned, **given).chosen:
        assert near(attention(*learned, **given), want, limit(backend))


def test_the_oracle_is_right_where_the_answer_is_known():
    """Rows by hand, so that oracle and library are not wrong together."""
    q, k = torch.zeros(1, 1, 2, 3), torch.randn(1, 1, 4, 3)
    v = torch.eye(4)[None, None]
    assert near(attend(q, k, v)[0], torch.full((1, 1, 2, 4), 0.25))
    assert near(
        attend(q, k, v, sees=lambda b, h, i, j: j <= i)[0][0, 0], torch.tensor([[1, 0, 0, 0], [0.5, 0.5, 0, 0]])
    )
    assert table(lambda b, h, i, j: 10 * i + j, 1, 1, 2, 2, first=3).flatten().tolist() == [30, 31, 40, 41]
