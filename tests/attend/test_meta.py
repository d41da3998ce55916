"""Tensors without values, of which only the shape of the output can be told: models built on the meta device."""

import pytest
import torch

from multihead.attend import Softmax, attention, attention_lse
from multihead.pattern import (
    after_same_token,
    causal,
    document,
    from_callable,
    global_tokens,
    padding,
    pairs,
    per_head,
    random_pairs,
    sliding_window,
)

IDS = torch.tensor([0, 0, 1, 1, 1])
KEEP = torch.tensor([[True] * 4 + [False]] * 2)
MASKS = [
    None,
    causal(),
    sliding_window(2),
    document(IDS),
    after_same_token(IDS),
    padding(KEEP),
    per_head([causal(), padding(KEEP)]),
    pairs([(0, 0)]),
    pairs([[(0, 0)], []]),
    global_tokens([0]),
    random_pairs(0.5, seed=0),
    from_callable(lambda q, k: q >= k),
    KEEP[:, None, None],
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: type(mask).__name__)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_output_has_its_shape(mask, dropout):
    q = torch.empty(2, 2, 5, 4, device="meta", requires_grad=True)
    given = mask.to("meta") if isinstance(mask, torch.Tensor) else mask
    out = attention(q, q, q[..., :3], mask=given, dropout=dropout)
    assert (out.shape, out.device.type) == ((2, 2, 5, 3), "meta")
    out.sum().backward()
    assert q.grad.shape == q.shape


def test_the_log_sum_exp_and_weights_have_theirs():
    q = torch.empty(2, 2, 5, 4, device="meta")
    told = attention_lse(q, q, q, mask=padding(KEEP), normaliser=Softmax(off_by_one=True))
    assert told.lse.shape == (2, 2, 5)
    assert told.weights(rows=[0]).shape == (2, 2, 1, 5)
