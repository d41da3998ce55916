"""The strongest links of some rows are those of the whole matrix of weights."""

import dataclasses

import pytest
import torch

from built import needs_kernel
from multihead.error import MultiheadError
from multihead.native import load
from multihead.native.statistics import MOST_LINKS, find
from native.oracle_statistics import case, expect, problem_of, weights_of

LIBRARY = load()
VARIANTS = () if LIBRARY is None else LIBRARY.variants()
pytestmark = needs_kernel

CASES = {
    "every row": {"links": 4},
    "one link": {"links": 1, "link_rows": torch.tensor([0, 5, 6, 7, 36])},
    "most links": {"links": MOST_LINKS, "link_rows": torch.arange(3, 30, 2)},
    "more links than keys": {"links": 12, "kv_len": 9, "sunk_keys": 2},
    "no row": {"links": 3, "link_rows": torch.tensor([], dtype=torch.int64)},
    "causal": {"links": 20, "window": (0, 2**62), "offset": 3},
    "keys shut and padding": {"links": 9, "keep": True, "pads": True, "dense": True},
    "padding that gets weight": {"links": 64, "pads": True, "sinks": True, "softcap": 3.0},
    "many keys of the sink": {"links": 8, "sunk_keys": 80, "bias": True},
    "among some rows": {"links": 5, "rows": [30, 2, 3, 36, 11], "link_rows": torch.tensor([1, 4])},
    "rows of several blocks": {"links": 7, "q_len": 150, "link_rows": torch.tensor([0, 23, 24, 120, 149])},
    "a scale below nothing": {"links": 6, "scale": -0.4},
    "equal scores": {"links": 10, "scale": 0.0},
}


def found_in(c):
    problem, held = problem_of(c)
    found = find(LIBRARY, problem, c.wanted, gram=True)
    del held
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("name", CASES)
def test_links_are_the_keys_of_the_largest_scores(name, variant):
    c = case(variant=int(variant), **CASES[name])
    found, want = found_in(c), expect(c)
    torch.testing.assert_close(found.link_weights.double(), want["link_weights"], rtol=8e-6, atol=2e-6)
    keys, due = found.link_keys.long(), want["link_keys"]
    assert torch.equal(keys < 0, due < 0)
    looked_at = list(range(c.q_len)[c.rows]) if isinstance(c.rows, slice) else c.rows
    rows = looked_at if c.link_rows is None else [looked_at[place] for place in c.link_rows]
    _, _, _, scores, seen = weights_of(c, rows)
    if not keys.numel():
        return
    # Where two scores are equal but for rounding either key may stand first: what their places hold is the same.
    at = scores.masked_fill(~seen, 0.0).gather(-1, keys.clamp(min=0))
    torch.testing.assert_close(at, scores.masked_fill(~seen, 0.0).gather(-1, due.clamp(min=0)), rtol=1e-5, atol=1e-5)
    assert bool((seen.gather(-1, keys.clamp(min=0)) | (keys < 0)).all())
    ordered = keys.sort(-1).values
    assert bool((ordered.diff() > 0).logical_or(ordered[..., 1:] < 0).all())
    assert float((keys != due).double().mean()) < 0.05


def test_of_equal_weights_the_lower_keys_come_first():
    c = case(links=40, kv_len=130, scale=1.0)
    # Whole numbers, whose products are exact, and each key 26 times: equal scores are equal wherever they are made.
    c.q, c.k = c.q.round(), c.k[:, :, :5].repeat(1, 1, 26, 1).round()
    assert torch.equal(found_in(c).link_keys.long(), expect(c)["link_keys"])


def test_without_a_request_nothing_is_told_and_nothing_else_changes():
    c = case(links=5, window=(0, 2**62), offset=100)
    asked = found_in(c)
    c.wanted = dataclasses.replace(c.wanted, links=0)
    plain = found_in(c)
    assert plain.link_keys.numel() == plain.link_weights.numel() == 0
    for field in dataclasses.fields(plain):
        if not field.name.startswith("link_"):
            assert torch.equal(getattr(plain, field.name), getattr(asked, field.name)), field.name


def test_any_number_of_threads_finds_the_same_links():
    c, found = case(links=9, q_len=200, pads=True), []
    for threads in (1, 2, 8):
        c.threads = threads
        found.append(found_in(c))
    for other in found[1:]:
        assert torch.equal(other.link_keys, found[0].link_keys)
        assert torch.equal(other.link_weights, found[0].link_weights)


@pytest.mark.parametrize(
    "change",
    [
        {"links": MOST_LINKS + 1},
        {"links": -1},
        {"links": 2, "link_rows": torch.tensor([0, 37])},
        {"links": 2, "link_rows": torch.tensor([-1, 3])},
        {"links": 2, "link_rows": torch.tensor([3, 3])},
        {"links": 2, "link_rows": torch.tensor([4, 3])},
    ],
    ids=["too many", "fewer than none", "row beyond", "row before", "row twice", "falling"],
)
def test_a_request_that_makes_no_sense_is_refused(change):
    c = case()
    c.wanted = dataclasses.replace(c.wanted, **change)
    with pytest.raises(MultiheadError, match="a size is negative"):
        found_in(c)
