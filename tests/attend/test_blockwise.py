"""Chosen blocks with the queries that chose them, against the formula over all pairs; and when "auto" takes them."""

import pytest
import torch

from attend.oracle import check_pairs, every_pair, qkv
from multihead.attend import Sigmoid, Softmax, attention, attention_lse, blockwise, explain, make_problem, piece
from multihead.attend.selector import Chosen, TopBlocks
from multihead.error import BackendRefused
from multihead.native import load
from multihead.pattern import band, causal, document, padding, per_head, sliding_window
from multihead.position import ALiBi, alibi_slopes
from multihead.testing import check_backend


def drawn(*, q_len=70, kv_len=70, dtype=torch.float64, **told):
    """Queries, keys and values, of sizes none of which is another."""
    return qkv(q_len=q_len, kv_len=kv_len, head_dim=12, v_head_dim=9, dtype=dtype, **told)


def blocks(batch, heads, rows, kv_len, *, block, share=0.4, span=1, q_len=None, q_offset=0):
    """Blocks chosen by chance, as a pattern and as truth values of pairs; the first row chose none."""
    inside = torch.rand(batch, heads, rows, -(-kv_len // block)) < share
    inside[:, :, 0] = False
    chosen = Chosen.from_blocks(inside, block=block, kv_len=kv_len, span=span, q_len=q_len, q_offset=q_offset)
    pairs = inside.repeat_interleave(span, 2)[:, :, : q_len or rows].repeat_interleave(block, 3)[..., :kv_len]
    return chosen, pairs


MASKS = {
    "nothing else": lambda n: None,
    "causal": lambda n: causal(),
    "padding": lambda n: causal() & padding(torch.rand(2, n) < 0.7),
    "documents": lambda n: document(torch.arange(n) // 23),
    "heads apart": lambda n: per_head([causal(), sliding_window(9), band(30, 30), causal()]),
    "a window": lambda n: sliding_window(20),
}


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("rest", MASKS)
def test_results_and_gradients_are_those_of_all_pairs(rest, softcap, sinks):
    q, k, v = drawn(grad=True)
    logits = torch.randn(4, dtype=torch.float64, requires_grad=True) if sinks else None
    chosen, pairs = blocks(2, 4, 70, 70, block=16)
    other = MASKS[rest](70)
    allowed = pairs if other is None else pairs & other.mask(70, 70)
    wants = every_pair(q, k, v, allowed, softcap=softcap, sinks=logits)
    problem = make_problem(
        q, k, v, mask=chosen if other is None else other & chosen, softcap=softcap, normaliser=Softmax(sinks=logits)
    )
    check_pairs(blockwise.run(problem), wants, [q, k, v] + [logits] * sinks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_it_is_as_exact_as_it_says(dtype):
    """Lengths around a block, one and many key heads, groups of queries, later queries."""
    cases = [
        (1, 1, {"block": 64, "span": 1}),
        (63, 63, {"block": 16}),
        (65, 65, {"block": 64}),
        (200, 200, {"block": 24}),
        (30, 95, {"block": 16, "q_offset": 65}),
    ]
    problems = []
    for q_len, kv_len, options in cases:
        q, k, v = drawn(q_len=q_len, kv_len=kv_len, dtype=dtype)
        chosen, _ = blocks(2, 4, q_len, kv_len, **options)
        problems.append(make_problem(q, k, v, mask=causal() & chosen, q_offset=options.get("q_offset", 0)))
    q, k, v = drawn(q_len=50, kv_len=50, dtype=dtype)
    chosen, _ = blocks(1, 1, 7, 50, block=16, span=8, q_len=50)
    problems.append(make_problem(q, k, v, mask=chosen))
    problems.append(make_problem(*drawn(q_len=50, kv_len=50, dtype=dtype), mask=causal() & chosen, dropout=0.3))
    report = check_backend("blockwise", problems=problems, seeds=(0, 1))
    assert not report.of("refused")
    assert {"inference", "training", "gradient of lse", "dropout"} <= {result.mode for result in report.results}


def test_many_pieces_are_one(monkeypatch):
    q, k, v = drawn(grad=True)
    chosen, _ = blocks(2, 4, 70, 70, block=16)
    problem = make_problem(q, k, v, mask=causal() & chosen)

    def both():
        out, lse = blockwise.run(problem)
        return out, lse, *torch.autograd.grad(out.square().sum() + lse[:, :, 60:].sum(), [q, k, v])

    whole = both()
    assert all(torch.equal(one, other) for one, other in zip(whole, both(), strict=True)), "the same whenever it runs"
    monkeypatch.setattr(piece, "_AT_ONCE", 16 * 5)
    pieces = list(piece.pieces(problem))
    assert max(one.rows.numel() * (one.cols.stop - one.cols.start) for one in pieces) <= 80
    for got, want in zip(both(), whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("number", [1e30, float("inf"), float("nan")])
def test_what_was_not_chosen_takes_no_part(number):
    q, k, v = drawn()
    chosen, pairs = blocks(1, 1, 70, 70, block=16)
    inside = pairs.clone()
    inside[..., 32:48] = False
    mask = Chosen.from_blocks(inside[..., ::16], block=16, kv_len=70)
    garbage_k, garbage_v = k.clone(), v.clone()
    garbage_k[:, :, 32:48], garbage_v[:, :, 32:48] = number, number
    results = []
    for keys, values in ((k, v), (garbage_k, garbage_v)):
        given = [x.clone().requires_grad_() for x in (q, keys, values)]
        out, lse = blockwise.run(make_problem(*given, mask=mask))
        grads = torch.autograd.grad(out.sum() + lse[lse.isfinite()].sum(), given)
        assert not grads[1][:, :, 32:48].any()
        assert not grads[2][:, :, 32:48].any()
        results.append((out, lse, *grads))
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*results, strict=True))


def test_scores_of_any_size_have_finite_gradients():
    """Products of 1e10 are rounded to thousands, and a weight must not be the exponential of those."""
    q, k, v = (1e5 * x if place < 2 else x for place, x in enumerate(drawn(dtype=torch.float32)))
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    chosen, _ = blocks(1, 1, 70, 70, block=16)
    out, _ = blockwise.run(make_problem(*given, mask=causal() & chosen))
    grads = torch.autograd.grad(out.sum(), given)
    assert all(grad.isfinite().all() for grad in grads)
    assert grads[2].abs().max() <= 70 * 2 + 1e-3, "the weights of a row are 1 together"


def test_gradients_have_gradients_by_another_backend_only():
    q, k, v = drawn(grad=True)
    chosen, _ = blocks(1, 1, 70, 70, block=16)
    out = attention(q, k, v, mask=causal() & chosen, backend="blockwise")
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(Exception, match=r'second derivatives(.|\n)*backend="reference"'):
        grad.sum().backward()


REFUSED = {
    "no choice": (lambda c: {"mask": causal()}, "chosen blocks of 16 keys or more"),
    "either of two": (lambda c: {"mask": c | causal()}, "chosen blocks of 16 keys or more"),
    "single keys": (lambda c: {"mask": blocks(1, 1, 70, 70, block=1)[0]}, "chosen blocks of 16 keys or more"),
    "a tensor": (lambda c: {"mask": c.mask(70, 70)}, "chosen blocks of 16 keys or more"),
    "a bias": (lambda c: {"mask": c, "bias": ALiBi(alibi_slopes(4))}, "no bias"),
    "another normaliser": (lambda c: {"mask": c, "normaliser": Sigmoid()}, "softmax only"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_do_is_refused_in_words(case):
    make, told = REFUSED[case]
    q, k, v = drawn()
    with pytest.raises(BackendRefused, match=told):
        attention(q, k, v, **make(blocks(1, 1, 70, 70, block=16)[0]), backend="blockwise")


@pytest.mark.skipif(load() is None, reason="the compiled kernel was not built")
def test_auto_trains_by_it_and_infers_by_it_where_tiles_would_touch_ten_times_as_much():
    q, k, v = drawn(batch=1, q_len=256, kv_len=256, dtype=torch.float32)
    chosen = TopBlocks(16, 3).select(q, k, mask=causal())
    assert attention_lse(q, k, v, mask=causal() & chosen).backend == "native"
    trained = attention_lse(q.clone().requires_grad_(), k, v, mask=causal() & chosen)
    assert trained.backend == "blockwise"
    # One block of 16 for each query, all of them other ones: tiles of 64 queries touch every block.
    inside = torch.zeros(1, 1, 256, 16, dtype=torch.bool)
    inside[0, 0, torch.arange(256), torch.arange(256) % 16] = True
    sparse = Chosen.from_blocks(inside, block=16)
    assert attention_lse(q, k, v, mask=sparse).backend == "blockwise"
    told = str(explain(make_problem(q, k, v, mask=sparse), "auto"))
    assert "its tiles of 64 queries touch 100.0% of all pairs, of which 6.2% are chosen" in told
    assert "chosen: plain torch, 6.2% of all pairs in 16 blocks of 16 keys" in told
    alike = Chosen.from_blocks(inside[:, :, :1].expand(-1, -1, 256, -1), block=16)
    assert attention_lse(q, k, v, mask=alike).backend == "native"
