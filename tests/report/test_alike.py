"""Which heads are alike: what the page holds of it grows with the heads, not with their square."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from multihead.report import render_page
from multihead.report.alike import SHOWN, join_families
from report.reading import data_of, floats
from report.samples import make_record

NAMES = {"pattern": "similarity", "aside": "similarity_content", "output": "cka"}


def with_overlap(record, values):
    """The record with other overlaps of patterns, sink set aside; (heads, widest)."""
    sums = dict(record.texts.sums) | {"similarity_content": np.broadcast_to(values, (3, *values.shape)).copy()}
    counts = dict(record.texts.counts) | {"similarity_content": np.ones((3, *values.shape))}
    return replace(record, texts=replace(record.texts, sums=sums, counts=counts))


def kept(data):
    """For each head the heads kept for it, with their values by kind."""
    told, heads = data["alike"], len(data["names"])
    near = np.frombuffer(base64.b64decode(told["near"]), "<i4").reshape(heads, told["size"])
    values = {kind: floats(told[kind]).reshape(near.shape) for kind in NAMES if kind in told}
    return [
        {int(g): {kind: v[h, k] for kind, v in values.items()} for k, g in enumerate(row) if g >= 0}
        for h, row in enumerate(near)
    ]


@pytest.mark.parametrize("stacks", [("",), ("encoder", "cross")])
def test_the_heads_most_like_a_head_are_kept_with_their_values(seed, stacks):
    record = make_record(2, 7, stacks=stacks, seed=seed)
    heads, values = record.texts.heads, {k: record.texts.value(n) for k, n in NAMES.items()}
    for h, found in enumerate(kept(data_of(render_page(record)))):
        mine = [g for g, a in enumerate(heads) if g != h and (a.stack, a.layer) == (heads[h].stack, heads[h].layer)]
        wanted = set()
        for kind in ("pattern", "aside"):
            wanted |= set(sorted(mine, key=lambda g: (-values[kind][h, heads[g].head], g))[:SHOWN])
        assert set(found) == wanted
        for g, told in found.items():
            for kind, value in told.items():
                assert value == pytest.approx(values[kind][h, heads[g].head], rel=1e-4)


def test_a_likeness_that_is_missing_is_left_out():
    record = make_record(1, 4)
    overlap = np.full((4, 4), np.nan)
    overlap[0, 2] = 0.5
    for head, others in enumerate(kept(data_of(render_page(with_overlap(record, overlap))))):
        by_pattern = sorted(set(range(4)) - {head}, key=lambda g: (-record.texts.value("similarity")[head, g], g))[
            :SHOWN
        ]
        assert set(others) == {*by_pattern, *([2] if head == 0 else [])}


def test_families_are_what_can_be_reached(seed):
    rng = np.random.default_rng(seed)
    pairs = [tuple(sorted(int(x) for x in rng.choice(30, 2, replace=False))) for _ in range(18)]
    reach = np.eye(30, dtype=bool)
    for a, b in pairs:
        reach[a, b] = reach[b, a] = True
    for _ in range(30):
        reach = reach | (reach.astype(int) @ reach.astype(int) > 0)
    wanted = {tuple(np.flatnonzero(row).tolist()) for row in reach if row.sum() > 1}
    found = join_families(pairs)
    assert {tuple(family) for family in found} == wanted
    assert found == sorted(found)


def test_the_page_of_one_wide_layer_grows_with_its_heads():
    """All heads look alike: the worst case for what is held of pairs."""
    sizes = []
    for heads in (40, 80, 160):
        record = with_overlap(make_record(1, heads), np.full((heads, heads), 0.95))
        data = data_of(render_page(record))
        assert data["families"] == [list(range(heads))]
        sizes.append(sum(len(json.dumps(data[part])) for part in ("arrays", "alike", "families")))
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert second == pytest.approx(2 * first, rel=0.03)


@pytest.mark.slow
@pytest.mark.browser
def test_a_thousand_heads_of_one_layer_keep_to_the_room_and_open(window, tmp_path):
    """Held pair by pair, likeness alone made 10 MB of it, and opening took minutes."""
    page_text = render_page(with_overlap(make_record(1, 1000), np.full((1000, 1000), 0.95)))
    assert len(page_text.encode()) <= 150_000 + 5_500 * 1_000
    path = tmp_path / "page.html"
    path.write_text(page_text, encoding="utf-8")
    page = window()
    page.goto(path.as_uri(), timeout=20_000)
    assert page.locator("#card .alike button").count() == SHOWN
    assert page.locator(".twin").count() == 1
    page.close()
