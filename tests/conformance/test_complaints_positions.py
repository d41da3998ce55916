"""Complaint 26 of the survey: conventions of rotary positions, in attention on every backend."""

import pytest
import torch

from attend.oracle import near, qkv
from conformance.forcing import every_backend
from multihead.attend import attention
from multihead.error import MultiheadError
from multihead.pattern import causal
from multihead.position import Rotary, permute_rows


def turned(rotary, q, k, v, positions, backend):
    q, k = (rotary.rotate(x, positions) for x in (q, k))
    return attention(q, k, v, mask=causal(), backend=backend)


@every_backend
@pytest.mark.parametrize("dim", [None, 4])
def test_26_half_and_interleaved_are_equal_after_permuting(dim, backend):
    q, k, v = qkv(q_len=7, kv_len=7)
    positions = torch.arange(7)

    def reordered(x):
        options = {"head_dim": 8, "source": "half", "target": "interleaved", "dim": dim}
        return permute_rows(x.movedim(-1, 0), **options).movedim(0, -1)

    half = turned(Rotary(dim=dim), q, k, v, positions, backend)
    other = turned(Rotary(dim=dim, layout="interleaved"), reordered(q), reordered(k), v, positions, backend)
    assert near(half, other)
    assert not near(half, turned(Rotary(dim=dim, layout="interleaved"), q, k, v, positions, backend), 1e-3)


@every_backend
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_26_only_distances_count_and_an_offset_continues(layout, backend):
    q, k, v = qkv(q_len=7, kv_len=7)
    rotary = Rotary(layout=layout)
    whole = turned(rotary, q, k, v, torch.arange(7), backend)
    assert near(whole, turned(rotary, q, k, v, torch.arange(40, 47), backend), 1e-4)
    keys = torch.cat([rotary.rotate(k[:, :, :5], torch.arange(5)), rotary.rotate(k[:, :, 5:], torch.arange(5, 7))], 2)
    last = rotary.rotate(q[:, :, 5:], torch.arange(5, 7))
    assert near(attention(last, keys, v, mask=causal(), q_offset=5, backend=backend), whole[:, :, 5:])


def test_26_dimensions_behind_the_rotated_ones_stay_and_odd_ones_are_refused():
    x = torch.randn(2, 4, 7, 9)
    assert torch.equal(Rotary(dim=4).rotate(x, torch.arange(7))[..., 4:], x[..., 4:])
    with pytest.raises(MultiheadError, match="9"):
        Rotary().rotate(x, torch.arange(7))
    with pytest.raises(MultiheadError, match="5"):
        Rotary(dim=5)
