import copy
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from multihead.error import MultiheadError
from multihead.layer import Router
from multihead.layer.gathered import Gathered, Rows
from multihead.layer.routing import deal, from_experts, to_experts
from multihead.pattern import causal, from_callable, lower, padding, sliding_window

WIDE = torch.float64


def router(*args, **kwargs):
    made = Router(*args, **kwargs).double()
    torch.nn.init.normal_(made.weight)
    return made


def test_the_largest_are_chosen_in_each_group():
    made, x = router(6, 5, chosen=3, groups=2), torch.randn(2, 7, 6, dtype=WIDE)
    choice = made(x)
    for b in range(2):
        for i in range(7):
            for g in range(2):
                logits = [float(made.weight[5 * g + e].detach() @ x[b, i]) for e in range(5)]
                want = sorted(range(5), key=lambda e, logits=logits: -logits[e])[:3]
                assert choice.experts[b, i, g].tolist() == want
                torch.testing.assert_close(choice.taken[b, i, g].tolist(), [logits[e] for e in want])
                assert choice.flags[b, i, g].nonzero().flatten().tolist() == sorted(want)


def test_of_equal_ones_those_with_the_lower_numbers():
    made = Router(4, 40, chosen=3)
    torch.nn.init.zeros_(made.weight)
    assert made(torch.randn(2, 50, 4)).experts.unique().tolist() == [0, 1, 2]
    with torch.no_grad():
        made.weight[[7, 20, 31]] = 1.0
    assert made(torch.ones(1, 3, 4)).experts[0, 0, 0].tolist() == [7, 20, 31]


def test_a_choice_depends_on_nothing_but_its_token():
    made, x = router(6, 8, chosen=2), torch.randn(3, 9, 6, dtype=WIDE)
    other = x.clone()
    other[0, 5:], other[1:] = 1e6, -1e6
    for one, two in zip(made(x), made(other), strict=True):
        assert torch.equal(one[0, :5], two[0, :5])
    # However many want the same expert, nobody is turned away.
    assert made(x[:1, :1].expand(3, 100, -1)).experts.unique().numel() == 2


def test_logits_are_wide_whatever_the_input():
    made = Router(8, 4, chosen=2).bfloat16()
    assert made(torch.randn(1, 3, 8).bfloat16()).logits.dtype == torch.float32
    assert Router(8, 4, chosen=2).double()(torch.randn(1, 3, 8, dtype=WIDE)).logits.dtype == WIDE


def counted(choice, experts, rows):
    """Shares by counting; rows are the (batch, place) that count."""
    share = torch.zeros(choice.experts.shape[2], experts, dtype=WIDE)
    for b, i in rows:
        for g, taken in enumerate(choice.experts[b, i].tolist()):
            for e in taken:
                share[g, e] += 1
    return share / max(len(rows), 1)


@pytest.mark.parametrize("some", [False, True])
def test_load_and_its_loss_are_what_counting_gives(some):
    made, x = router(6, 5, chosen=2, groups=3), torch.randn(2, 11, 6, dtype=WIDE)
    choice, keep = made(x), torch.rand(2, 11) < 0.6 if some else None
    rows = [(b, i) for b in range(2) for i in range(11) if keep is None or keep[b, i]]
    share = counted(choice, 5, rows)
    torch.testing.assert_close(made.load(keep), share)
    loss = 0.0
    for g in range(3):
        mean = [sum(choice.logits[b, i, g].softmax(0)[e] for b, i in rows) / len(rows) for e in range(5)]
        loss = loss + 25 * sum(share[g, e] * mean[e] for e in range(5)) / 5 / 3
    torch.testing.assert_close(made.load_loss(keep), loss)
    grads = [torch.autograd.grad(each, made.weight, retain_graph=True)[0] for each in (made.load_loss(keep), loss)]
    torch.testing.assert_close(*grads)
    assert grads[0].abs().max() > 0
    assert not made.load().requires_grad


def test_the_loss_is_least_at_an_even_load():
    """Where experts that are taken more often are as probable or more so; equal to `chosen` only where all are even."""
    made = Router(4, 4, chosen=1).double()
    with torch.no_grad():
        made.weight.copy_(torch.eye(4))
    even = torch.eye(4, dtype=WIDE)[None] * 3
    made(even)
    assert made.load().tolist() == [[0.25] * 4]
    torch.testing.assert_close(made.load_loss(), torch.tensor(1.0, dtype=WIDE))
    for _ in range(20):
        made(even[:, torch.randint(4, (9,))])  # 9 tokens for 4 experts are never even
        assert made.load_loss() > 1 + 1e-3
    # In general it is no bound: probabilities may lean the other way than the choices do.
    leaning = Router(2, 2, chosen=1)
    with torch.no_grad():
        leaning.weight.copy_(torch.eye(2))
    leaning(torch.tensor([[[2.2, 0], [0, 0.2], [0, 0.2]]]))
    assert leaning.load_loss() < 0.95


def test_descending_the_loss_evens_the_load():
    made, x = Router(16, 4, chosen=1), torch.randn(1, 400, 16) + 1
    with torch.no_grad():
        made.weight[0] += 0.3
    made(x)
    before = made.load().max()
    step = torch.optim.Adam(made.parameters(), 0.02)
    for _ in range(60):
        step.zero_grad()
        made(x)
        made.load_loss().backward()
        step.step()
    made(x)
    assert before > 0.6
    assert made.load().max() < 0.4


def test_nothing_that_counts_gives_no_nan():
    made = Router(4, 3, chosen=2)
    made(torch.randn(2, 3, 4))
    assert made.load(torch.zeros(2, 3, dtype=torch.bool)).tolist() == [[0.0] * 3]
    made(torch.randn(0, 3, 4))
    made.load_loss().backward()
    assert made.load().tolist() == [[0.0] * 3]


def test_gradients_come_out_of_a_checkpoint():
    made, x = router(6, 5, chosen=2), torch.randn(1, 9, 6, dtype=WIDE, requires_grad=True)

    def run(x):
        return made(x).taken.softmax(-1).square().sum()

    (run(x) + made.load_loss()).backward()
    want = made.weight.grad
    made.weight.grad = None
    (checkpoint(run, x, use_reentrant=False) + made.load_loss()).backward()
    torch.testing.assert_close(made.weight.grad, want)
    checkpoint(run, x, use_reentrant=True)
    with pytest.raises(MultiheadError, match="use_reentrant=False"):
        made.load_loss()


def test_a_loss_without_gradients_is_refused_where_some_are_wanted():
    made = Router(6, 5, chosen=2)
    with torch.no_grad():
        made(torch.randn(1, 9, 6))
        assert made.load_loss() > 0
    with pytest.raises(MultiheadError, match=r"a load loss with gradients\n.*ran without"):
        made.load_loss()
    assert made.load().sum() > 1.9


def test_copies_and_files_hold_no_call():
    made = Router(6, 5, chosen=2)
    made(torch.randn(1, 9, 6))
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(other.weight, made.weight)
        with pytest.raises(MultiheadError, match="not called yet"):
            other.load()
    assert str(made) == "Router(6, experts=5, chosen=2)"


@pytest.mark.usefixtures("unhooked")
def test_what_cannot_be_asked_for():
    for chosen in (0, 6, -1, True, 2.0):
        with pytest.raises(MultiheadError, match=r"(?s)how many of the 5 experts.*fix: pass 1 to 5"):
            Router(8, 5, chosen=chosen)
    with pytest.raises(MultiheadError, match=r"fix: pass 1$"):
        Router(8, 1, chosen=2)
    for sizes in ((0, 5), (8, 0)):
        with pytest.raises(MultiheadError, match="at least 1"):
            Router(*sizes, chosen=1)
    made = Router(8, 5, chosen=2)
    with pytest.raises(MultiheadError, match="fix: call the layer first"):
        made.load_loss()
    made(torch.randn(2, 3, 8))
    for keep in (torch.ones(2, 3), torch.ones(3, dtype=torch.bool), torch.ones(2, 4, dtype=torch.bool)):
        with pytest.raises(MultiheadError, match=r"keep: booleans \(2, 3\)"):
            made.load(keep)


def test_products_by_expert_are_those_token_by_token():
    x, index = torch.randn(7, 6, dtype=WIDE, requires_grad=True), torch.randint(5, (7, 3))
    index[index == 2] = 1  # an expert that nobody takes
    weight = torch.randn(5, 4, 6, dtype=WIDE, requires_grad=True)
    dealt = deal(index, 5)
    assert dealt.counts.tolist() == [int((index == e).sum()) for e in range(5)]
    got = to_experts(x, dealt, weight)
    want = torch.stack([torch.stack([weight[e] @ x[t] for e in index[t].tolist()]) for t in range(7)])
    back = torch.randn(5, 6, 4, dtype=WIDE, requires_grad=True)
    summed = torch.stack([sum(back[e] @ want[t, s] for s, e in enumerate(index[t].tolist())) for t in range(7)])
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(from_experts(got, dealt, back), summed)
    pull = torch.randn(7, 6, dtype=WIDE)
    leaves = (x, weight, back)
    torch.testing.assert_close(
        torch.autograd.grad((from_experts(got, dealt, back) * pull).sum(), leaves),
        torch.autograd.grad((summed * pull).sum(), leaves),
    )


@pytest.mark.parametrize("which", ["causal", "padded", "window", "by head"])
def test_rows_taken_out_see_what_they_saw(which):
    batch, heads, length, first = 2, 3, 41, 5
    spans = torch.tensor([3, 9, 50]).view(1, 3, 1, 1)
    part = {
        "causal": causal(),
        "padded": causal() & padding(torch.rand(batch, length + first) < 0.7),
        "window": sliding_window(9),
        "by head": from_callable(lambda q, k: (q - k).abs() < spans, name="spans", heads=3),
    }[which]
    chosen = torch.rand(batch, heads, length) < torch.tensor([0.2, 0.5, 0.9])[:, None]
    chosen[0, 1] = False
    rows = Rows.of(chosen)
    most = rows.places.shape[2]
    assert most == chosen.sum(-1).max()
    gathered = Gathered(part, rows, first, torch.arange(heads), length)
    whole = part.mask(length, length + first, q_offset=first).expand(batch, heads, -1, -1)
    want = torch.zeros(batch, heads, most, length + first, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            places = chosen[b, h].nonzero().flatten()
            want[b, h, : len(places)] = whole[b, h, places]
    assert torch.equal(gathered.mask(most, length + first), want)
    for block in (4, 32):
        assert torch.equal(lower(gathered, most, length + first, block=block).mask(), want)
    x = torch.randn(batch, heads, length, 2)
    assert torch.equal(rows.put(rows.take(x), length), x * chosen[..., None])


def test_tiles_of_rows_taken_out_are_passed_over():
    """A pattern that says PARTIAL of every tile would be sound, and save nothing."""
    rows = Rows.of(torch.rand(1, 2, 2048) < 0.5)
    classes = Gathered(causal(), rows, 0, torch.arange(2), 2048).tiles(
        torch.arange(0, rows.places.shape[2] + 1, 64), torch.arange(0, 2049, 64)
    )
    assert (classes == 1).float().mean() < 0.2
    assert (classes == 0).float().mean() > 0.3
    assert (classes == 2).float().mean() > 0.3
