"""Bands: every pair a pattern allows is in one, what it forbids in bulk is in none."""

import pytest
import torch

from attend.oracle import qkv
from multihead.attend import make_problem
from multihead.attend.tile import add_at, bands
from multihead.pattern import causal, distance, document, everything, nothing, padding, sliding_window


def cut(mask, q_len, kv_len, height, offset=0):
    q, k, v = qkv(batch=1, heads=1, kv_heads=1, q_len=q_len, kv_len=kv_len)
    return list(bands(make_problem(q, k, v, mask=mask, q_offset=offset), height))


MASKS = {
    "causal": lambda: causal(),
    "window": lambda: sliding_window(7),
    "gap": lambda: distance(0) | distance(290),
    "document": lambda: document(torch.randint(0, 3, (600,)).sort().values),
    "padding": lambda: padding(torch.rand(400) < 0.5),
    "nothing": lambda: nothing(),
    "everything": lambda: everything(),
    "none": lambda: None,
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("q_len", "kv_len", "offset"), [(300, 300, 0), (50, 300, 250), (300, 70, -20), (1, 1, 0)])
def test_bands_hold_every_allowed_pair(name, q_len, kv_len, offset):
    mask = MASKS[name]()
    if name == "document" and offset < 0:
        offset = 0
    dense = torch.ones(q_len, kv_len, dtype=torch.bool)
    dense = dense if mask is None else mask.mask(q_len, kv_len, q_offset=offset)[0, 0].expand(q_len, kv_len)
    covered, rows = torch.zeros(q_len, kv_len, dtype=torch.bool), []
    for band in cut(mask, q_len, kv_len, 32, offset):
        rows += range(band.rows.start, band.rows.stop)
        covered[band.rows, band.cols] = True
        if not band.masked:
            assert dense[band.rows][:, band.cols].all()
    assert rows == list(range(q_len))
    assert not (dense & ~covered).any()


def test_keys_beyond_a_window_are_left_out():
    sizes = [band.cols.stop - band.cols.start for band in cut(sliding_window(10), 1024, 1024, 64)]
    assert max(sizes) <= 256
    assert sum(sizes) < 16 * 1024 / 4


def test_keys_between_two_places_are_left_out():
    last = cut(distance(0) | distance(900), 1024, 1024, 32)[-1]
    assert isinstance(last.cols, torch.Tensor)
    assert last.cols.tolist() == [*range(128), *range(896, 1024)]


def test_nothing_to_see():
    assert {(band.cols.start, band.cols.stop, band.masked) for band in cut(nothing(), 40, 40, 16)} == {(0, 0, False)}


@pytest.mark.parametrize("mask", [None, causal(), torch.ones(1, 1, dtype=torch.bool)], ids=["none", "causal", "tensor"])
def test_no_queries_or_no_keys(mask):
    assert cut(mask, 0, 5, 4) == []
    assert [(band.rows, band.cols) for band in cut(mask, 5, 0, 4)] == [
        (slice(0, 4), slice(0, 0)),
        (slice(4, 5), slice(0, 0)),
    ]


def test_a_tensor_is_not_looked_into():
    (band,) = cut(torch.zeros(5, 7, dtype=torch.bool), 5, 7, 8)
    assert band == (slice(0, 5), slice(0, 7), True)


def test_long_sequences_are_asked_about_in_parts(monkeypatch):
    monkeypatch.setattr("multihead.attend.tile._AT_ONCE", 8)
    parts = cut(causal(), 300, 300, 16)
    monkeypatch.undo()
    assert parts == cut(causal(), 300, 300, 16)


def test_add_at():
    total = torch.zeros(1, 1, 5, 2)
    add_at(total, slice(1, 3), torch.ones(1, 1, 2, 2))
    add_at(total, torch.tensor([4, 1]), torch.full((1, 1, 2, 2), 2.0, dtype=torch.float64))
    assert total[0, 0, :, 0].tolist() == [0.0, 3.0, 1.0, 0.0, 2.0]
