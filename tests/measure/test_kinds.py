"""Every kind of attention under observation: measured as its weights are, or refused, or told otherwise, in words."""

import math

import pytest
import torch
from torch import nn

from multihead.attend.selector import Buckets, TopKeys
from multihead.error import MultiheadError
from multihead.hooks import gated, watching
from multihead.layer import (
    FAMILIES,
    Block,
    HeadGroup,
    Index,
    IndexedAttention,
    Latent,
    LinearScoring,
    LSHAttention,
    MoHAttention,
    MultiHeadAttention,
)
from multihead.measure import Batch, ablated, mean_outputs, observe
from multihead.pattern import causal, padding
from multihead.record import Document

STATEFUL = {"linear", "performer", "retention", "gated_linear", "gated_delta"}
UNTOLD = STATEFUL | {"talking_heads"}
SAID = {
    "differential": "one of the two maps of a head",
    "mixture_of_heads": "at the tokens that took it",
    "mixture_of_attention": "a slot: a head of a token's best expert",
    "native_sparse": "told three times, for the branches of compressed blocks, of chosen blocks and of the window",
}
LENGTH, WIDTH = 21, 32


class Model(nn.Module):
    """Two blocks of a kind."""

    def __init__(self, *kinds, causal_ones=True):
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH, kind, heads=4) for kind in kinds)
        self.mask = causal() if causal_ones else None
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, mask=self.mask)
        return x


def built(name):
    return Model(name, name, causal_ones=FAMILIES[name].support.causal).eval(), torch.randn(2, LENGTH, WIDTH)


def batch_of(x):
    return Batch(inputs={"x": x}, document=(0, 1)), [Document(name=n, digest=n, tokens=LENGTH) for n in "ab"]


def dense(problem):
    """Weights (batch, heads, q_len, kv_len) in float64 from scores, all pairs at once, and which pairs there are."""
    allowed = problem.allowed(slice(0, problem.q_len), slice(0, problem.kv_len))
    shape = (problem.batch, problem.heads, problem.q_len, problem.kv_len)
    allowed = torch.ones(shape, dtype=torch.bool) if allowed is None else allowed.expand(shape)
    k = problem.k.double().repeat_interleave(problem.group, 1)
    scores = problem.scale * problem.q.double() @ k.mT
    if isinstance(problem.bias, torch.Tensor):
        scores = scores + problem.bias.double()
    raised = scores.masked_fill(~allowed, -torch.inf)
    total = raised.logsumexp(-1, keepdim=True)
    return torch.exp(raised - torch.where(total.isneginf(), 0.0, total)), allowed


def slow(problems, heads):
    """Entropy and largest weight of each head over all rows of some calls that see two keys or more."""
    entropy, largest = [[] for _ in range(heads)], [[] for _ in range(heads)]
    for problem in problems:
        weights, allowed = dense(problem)
        for b, h, i in (allowed.sum(-1) >= 2).nonzero().tolist():
            row = weights[b, h, i].tolist()
            entropy[h].append(-sum(w * math.log(w) for w in row if w > 0))
            largest[h].append(max(row))
    return [sum(v) / len(v) for v in entropy], [sum(v) / len(v) for v in largest]


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - UNTOLD))
def test_what_is_measured_are_the_weights_of_the_layer(name):
    model, x = built(name)
    with torch.no_grad():
        want, calls = model(x), []
        with watching(model, calls.append) as watched:
            got = model(x)
    # Nothing but rounding is changed by being watched (LSH computes from all pairs then).
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    for call in calls:
        # What is told is what the layer computed: its weights times its values are its heads.
        weights, _ = dense(call.problem)
        values = call.problem.v.double().repeat_interleave(call.problem.group, 1)
        again = (weights @ values).transpose(1, 2)
        torch.testing.assert_close(call.output.double(), again, rtol=1e-3, atol=1e-4)
    batch, documents = batch_of(x)
    record = observe(model, [batch], documents=documents)
    for layer in range(2):
        mine = [call.problem for call in calls if call.site.module == f"blocks.{layer}.attention"]
        assert len(mine) == (3 if name == "native_sparse" else 1)
        entropy, largest = slow(mine, mine[0].heads)
        for head, (one, other) in enumerate(zip(entropy, largest, strict=True)):
            found = record[f"L{layer}.H{head}"]
            assert found.entropy == pytest.approx(one, rel=1e-3, abs=1e-4)
            assert found.max_weight == pytest.approx(other, rel=1e-3, abs=1e-4)
    told = " ".join(note.text for note in record.notes)
    assert all((words in told) == (kind == name) for kind, words in SAID.items())
    assert list(watched.remarks) == ([f"blocks.{n}.attention" for n in range(2)] if name in SAID else [])


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - STATEFUL))
def test_heads_of_every_kind_with_weights_are_taken_out(name):
    model, x = built(name)
    with torch.no_grad():
        want = model(x)
        with ablated(model, ["L1.H0"]):
            out = model(x)
        with gated(model, {"L1.H0": 0.0}):
            torch.testing.assert_close(model(x), out, rtol=1e-4, atol=1e-4)
    assert not torch.equal(out, want)


@pytest.mark.parametrize("name", sorted(UNTOLD))
def test_what_has_no_weights_of_its_own_is_refused_with_the_reason(name):
    reason = "its heads mix" if name == "talking_heads" else "one state of all earlier tokens.*no weights of pairs"
    model, x = built(name)
    batch, documents = batch_of(x)
    asked = [lambda: observe(model, [batch], documents=documents), lambda: mean_outputs(model, [batch])]
    if name in STATEFUL:
        asked.append(lambda: ablated(model, ["L0.H0"]).__enter__())
    for ask in asked:
        with pytest.raises(MultiheadError, match=reason) as refused:
            ask()
        assert "blocks.0.attention" in refused.value.arrived


@pytest.mark.parametrize("name", sorted(UNTOLD))
def test_beside_layers_that_are_told_it_is_said_what_is_not(name):
    model, x = Model(name, "multi_head").eval(), torch.randn(2, LENGTH, WIDTH)
    batch, documents = batch_of(x)
    record = observe(model, [batch], documents=documents)
    (note,) = {note.text for note in record.notes if "blocks.0.attention: not measured: " in note.text}
    assert ("its heads mix" if name == "talking_heads" else "no weights of pairs") in note


def test_linear_heads_of_a_layer_can_be_taken_out():
    layer = MultiHeadAttention(WIDTH, HeadGroup(4, scoring=LinearScoring())).eval()
    x = torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad(), ablated(layer, ["L0.H0"]):
        out = layer(x, mask=causal())
    with torch.no_grad():
        assert not torch.equal(layer(x, mask=causal()), out)


class Masked(nn.Module):
    """One layer under a mask."""

    def __init__(self, layer, mask):
        super().__init__()
        self.layer, self.mask = layer, mask
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)

    def forward(self, x):
        return self.layer(x, mask=self.mask)


CHOOSING = {
    "hashing": lambda: LSHAttention(WIDTH, 4, Buckets((8, 8), seed=0)),
    "indexed": lambda: IndexedAttention(
        WIDTH, 4, Latent(16, nope_dim=8, rope_dim=4, v_dim=8), Index(2, heads=2, head_dim=8)
    ),
    "top keys": lambda: MultiHeadAttention(WIDTH, HeadGroup(4, mask=TopKeys(2))),
    "mixture": lambda: MoHAttention(WIDTH, 4, shared=0, chosen=1),
}


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.parametrize("padded", [False, True])
def test_a_token_that_nobody_chose_is_no_padding(name, padded):
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    if padded:
        keep[1, -5:] = False
    model = Masked(CHOOSING[name](), causal() & padding(keep) if padded else causal()).eval()
    batch, documents = batch_of(torch.randn(2, LENGTH, WIDTH))
    record = observe(model, [batch], documents=documents)
    share = record.per_document("rows_padded")
    assert share[0].tolist() == [0.0] * 4
    assert share[1].tolist() == pytest.approx([5 / LENGTH if padded else 0.0] * 4)
