"""Heads that some tokens did not take are measured over those that did, and over no others."""

import math

import pytest
import torch
from torch import nn

from multihead.hooks import watching
from multihead.layer import MoHAttention
from multihead.measure import Batch, observe
from multihead.pattern import causal, padding
from multihead.record import Document

HEADS, SHARED, LENGTH = 5, 1, 11


class Model(nn.Module):
    """One layer, whatever mask it is given."""

    def __init__(self, mask):
        super().__init__()
        self.attn, self.mask = MoHAttention(20, HEADS, shared=SHARED, chosen=2), mask
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.6)
        self.double()

    def forward(self, x, memory=None):
        return self.attn(x, memory, mask=self.mask)


MASKS = {
    "none": lambda keep: None,
    "causal": lambda keep: causal(),
    "causal and padding": lambda keep: causal() & padding(keep),
    "tensor": lambda keep: causal().mask(LENGTH, LENGTH) & keep[:, None, None, :],
}


def slow(attn, x, allowed, memory=None):
    """Weights (batch, heads, q_len, kv_len) from the definition, and which rows took each head."""
    memory = x if memory is None else memory
    q, k = (p(t).unflatten(2, (HEADS, -1)) for p, t in ((attn.q_proj, x), (attn.k_proj, memory)))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    logits = x @ attn.router.weight.T
    taken = torch.ones(*x.shape[:2], HEADS, dtype=torch.bool)
    for b, i in ((b, i) for b in range(x.shape[0]) for i in range(x.shape[1])):
        best = logits[b, i].argsort(descending=True)[:2].tolist()
        taken[b, i, SHARED:] = torch.tensor([e in best for e in range(HEADS - SHARED)])
    return weights, taken.transpose(1, 2)


def means(weights, taken, allowed):
    """Entropy, largest weight, weights on the first key and the one before: of rows taken that see two keys or more."""
    found = {"entropy": [], "max_weight": [], "first_token": [], "previous": []}
    for h in range(HEADS):
        rows = {name: [] for name in found}
        sees = allowed.expand(len(taken), HEADS, -1, -1)[:, h].sum(-1)
        for b, i in (taken[:, h] & (sees >= 2)).nonzero().tolist():
            row = weights[b, h, i]
            rows["entropy"].append(-sum(w * math.log(w) for w in row.tolist() if w > 0))
            rows["max_weight"].append(float(row.max()))
            rows["first_token"].append(float(row[0]))
            if i > 0:
                rows["previous"].append(float(row[i - 1]))
        for name, values in rows.items():
            found[name].append(sum(values) / max(len(values), 1))
    return found


@pytest.mark.parametrize("name", MASKS)
def test_statistics_are_those_of_the_rows_that_took_the_head(name):
    keep = torch.ones(3, LENGTH, dtype=torch.bool)
    if name in ("causal and padding", "tensor"):
        keep[1, 8:] = False
    mask = MASKS[name](keep)
    model, x = Model(mask), torch.randn(3, LENGTH, 20, dtype=torch.float64)
    allowed = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    if mask is not None:
        allowed = mask if isinstance(mask, torch.Tensor) else mask.mask(LENGTH, LENGTH)
    with torch.no_grad():
        weights, taken = slow(model.attn, x, allowed)
    documents = [Document(name=n, digest=n, tokens=LENGTH) for n in "abc"]
    record = observe(model, [Batch(inputs={"x": x}, document=(0, 1, 2))], documents=documents)
    assert not taken.all()
    want = means(weights, taken & keep[:, None], allowed)  # padding is no query
    for quantity, values in want.items():
        got = torch.as_tensor([getattr(record[f"L0.H{h}"], quantity) for h in range(HEADS)])
        torch.testing.assert_close(
            got.double(), torch.tensor(values).double(), rtol=1e-5, atol=1e-6, msg=lambda m, q=quantity: f"{q}: {m}"
        )


@pytest.mark.parametrize("name", [*MASKS, "cross"])
@pytest.mark.parametrize("least", [1, 256])
def test_what_a_watcher_is_told_gives_the_output(name, least, monkeypatch):
    """The problem, computed anew from its own facts, is what the heads gave; rows not taken see nothing."""
    monkeypatch.setattr("multihead.layer.mixture_of_heads._LEAST", least)
    keep = torch.rand(3, LENGTH) < 0.8
    keep[:, 0] = True
    mask = None if name == "cross" else MASKS[name](keep)
    model, x = Model(mask), torch.randn(3, LENGTH, 20, dtype=torch.float64)
    memory = torch.randn(3, 7, 20, dtype=torch.float64) if name == "cross" else None
    calls = []
    with torch.no_grad(), watching(model, calls.append):
        told = model(x, memory)
    with torch.no_grad():
        assert torch.equal(model(x, memory), told)
    (call,) = calls
    problem = call.problem
    allowed = torch.ones(1, 1, LENGTH, problem.kv_len, dtype=torch.bool)
    if mask is not None:
        allowed = mask if isinstance(mask, torch.Tensor) else mask.mask(LENGTH, LENGTH)
    _, taken = slow(model.attn, x, allowed, memory)
    seen = problem.allowed(slice(0, LENGTH), slice(0, problem.kv_len))
    assert torch.equal(seen.expand(3, HEADS, LENGTH, problem.kv_len), allowed & taken[..., None])
    weights = problem.normaliser.weigh(problem.scores(), problem.normaliser.settle(problem.scores()))
    again = (weights @ problem.v).transpose(1, 2)
    torch.testing.assert_close(call.output, again, rtol=1e-10, atol=1e-10)
    assert not call.output[~taken.transpose(1, 2)].any()


def test_memory_of_what_is_told_grows_with_the_length_alone():
    model, x, calls = Model(causal()), torch.randn(1, 900, 20, dtype=torch.float64), []
    with torch.no_grad(), watching(model, calls.append):
        model(x)
    assert sum(held.numel() for held in calls[0].problem.mask.data.values()) == 900 * HEADS
