import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from multihead.report.pack import Maps, ends, floats, pack, pack_maps
from report.reading import ends as read_ends
from report.reading import floats as read_floats
from report.reading import unpack
from report.samples import make_record

NUMBERS = st.floats(-1e3, 1e3) | st.just(math.nan) | st.just(math.inf)


@given(hnp.arrays(np.float64, (3, 4), elements=NUMBERS))
def test_packing_keeps_values_to_a_step(values):
    packed = pack(values)
    got, known = unpack(packed, 3), np.isfinite(values)
    assert np.array_equal(np.isfinite(got), known)
    if known.any():
        step = (packed["high"] - packed["low"]) / 254
        assert np.abs(got[known] - values[known]).max() <= (2 if packed["power"] == 2 else 0.51) * step + 1e-9


@given(hnp.arrays(np.float64, 5, elements=NUMBERS))
def test_numbers_keep_five_digits(values):
    got = read_floats(floats(values))
    assert np.array_equal(np.isnan(got), np.isnan(values))
    assert np.allclose(np.nan_to_num(got), np.nan_to_num(values), rtol=1e-4, atol=1e-30)


@given(hnp.arrays(np.float64, (2, 4), elements=st.floats(-1e3, 1e3) | st.just(math.nan)))
def test_intervals_keep_their_ends(pairs):
    low, high = np.sort(pairs, axis=0)
    packed, known = ends(low, high), np.isfinite(low) & np.isfinite(high)
    if packed is None:
        assert not (high[known] > low[known]).any()
        return
    got = read_ends(packed, 4)
    assert np.array_equal(np.isfinite(got).all(axis=0), known)
    step = (packed["high"] - packed["low"]) / 65534
    assert np.abs(got[:, known] - np.stack([low, high])[:, known]).max() <= step + 1e-9


def rebuild(packed, heads):
    """The whole map and the one with the sink set aside, as the page's script puts them together."""
    rows, columns = packed["shape"]
    keep = np.tril(np.ones((rows, columns), dtype=bool)) if packed["lower"] else np.ones((rows, columns), dtype=bool)
    content = np.zeros((heads, rows, columns))
    content[:, keep] = unpack(packed["content"], heads)
    sink = unpack(packed["sink"], heads)
    whole = content * (1 - sink)[..., None]
    extra = unpack(packed["extra"], heads).reshape(heads, rows, -1)
    whole[..., packed["columns"]] += extra
    return np.where(keep, whole, 0.0), content


@pytest.mark.parametrize("causal", [True, False])
def test_both_maps_are_in_little_more_room_than_one(causal, seed):
    texts = make_record(3, 4, causal=causal, seed=seed).texts
    plain, content, sink = (texts.value(n) for n in ("pooled_map", "pooled_map_content", "sink_by_position"))
    packed = pack_maps(Maps(plain=plain, content=content, sink=sink), causal=causal)
    whole, left = rebuild(packed, 12)
    assert packed["columns"] == ([0] if causal else [0, 31])
    assert np.abs(whole - plain).max() < 0.02
    assert np.abs(left - content).max() < 0.01
    alone = pack_maps(Maps(plain=plain, content=None, sink=None), causal=causal)
    kept = np.tril(np.ones((32, 32))) > 0 if causal else np.ones((32, 32)) > 0
    assert np.abs(unpack(alone["plain"], 12) - plain[:, kept]).max() < 0.01


def test_a_sink_that_lies_everywhere_is_stored_whole(seed):
    texts = make_record(1, 3, seed=seed).texts
    plain = np.full((3, 32, 32), 1 / 32)
    packed = pack_maps(
        Maps(plain=plain, content=texts.value("pooled_map_content"), sink=np.full((3, 32), 0.9)), causal=False
    )
    assert "extra" not in packed
    assert np.abs(unpack(packed["plain"], 3) - 1 / 32).max() < 1e-3


def test_pooling_halves_a_map_and_keeps_its_weight(seed):
    texts = make_record(2, 3, seed=seed).texts
    plain, content, sink = (texts.value(n) for n in ("pooled_map", "pooled_map_content", "sink_by_position"))
    maps = Maps(plain=plain, content=content, sink=sink)
    small = maps.pooled()
    assert small.plain.shape == (6, 16, 16)
    assert np.allclose(small.plain.sum(axis=2), maps.plain.sum(axis=2).reshape(6, 16, 2).mean(axis=2))
    whole = small.content * (1 - small.sink)[..., None]
    want = maps.content * (1 - maps.sink)[..., None]
    assert np.allclose(whole.sum(axis=(1, 2)), want.sum(axis=(1, 2)) / 2)
    odd = Maps(plain=np.ones((1, 5, 4)), content=None, sink=None)
    assert odd.pooled() is odd
