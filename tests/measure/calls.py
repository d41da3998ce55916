"""Attention calls made by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from measure import oracle
from measure.oracle import Facts, alike_of, statistics_of, weights_of
from measure.oracle_outputs import outputs_of, written_of
from multihead.attend import Softmax, make_problem
from multihead.corpus import TokenClasses
from multihead.hooks import Call, Projection, Site, Tokens
from multihead.measure import DEFAULT, DEFAULT_TARGETS, build_scene, sweep
from multihead.measure.recorder import Recorder
from multihead.measure.statistic import target, token_class

VOCAB = 12


def classes():
    """Three classes of 12 tokens; 0 and 1 are special."""
    table = torch.arange(VOCAB) % 3
    return TokenClasses(names=("a", "b", "c"), table=table, special=torch.arange(VOCAB) < 2, marks="")


def make_call(
    *,
    batch=2,
    heads=4,
    kv_heads=None,
    q_len=13,
    kv_len=None,
    dim=8,
    cross=False,
    q_keep=None,
    k_keep=None,
    ids=True,
    coarse=False,
    **given,
):
    """A random call; `given` goes to `make_problem`.

    Coarse queries and keys are multiples of 1/4: their products are exact in single precision, where those of others
    are off by 6e-8 of their size, and weights by as much as that times the largest score.
    """
    kv_len = q_len if kv_len is None else kv_len
    q = torch.randn(batch, heads, q_len, dim) * 2
    k, v = torch.randn(2, batch, kv_heads or heads, kv_len, dim)
    if coarse:
        q, k = (4 * q).round() / 4, (4 * k).round() / 4
    problem = make_problem(q, k, v, **given)
    k_ids = torch.randint(0, VOCAB, (batch, kv_len))
    start = problem.q_offset or 0
    q_ids = torch.randint(0, VOCAB, (batch, q_len)) if cross else k_ids[:, start : start + q_len]
    weights = torch.nan_to_num(weights_of(problem)[0])
    out = torch.einsum("bhij,bhjd->bihd", weights, v.double().repeat_interleave(problem.group, dim=1)).float()
    return Call(
        site=Site(module="layers.0.attention", cross=cross),
        problem=problem,
        output=out,
        projection=Projection(weight=torch.randn(24, heads * dim)),
        residual=torch.randn(batch, q_len, 24),
        queries=Tokens(ids=q_ids if ids else None, keep=k_keep if not cross and q_keep is None else q_keep),
        keys=Tokens(ids=k_ids if ids else None, keep=k_keep),
        kernel="test",
    )


def in_double(call):
    """The call with queries, keys and values in double precision.

    Signed distances of many rows may add up to almost nothing, of which single precision leaves few digits.
    """
    wide = {name: getattr(call.problem, name).double() for name in "qkv"}
    return dataclasses.replace(call, problem=dataclasses.replace(call.problem, **wide))


def take(call, *, rows=None, statistics=None, classes_at=None, backend="auto"):
    """What the sweep makes of a call: name -> (sums, counts) as numpy (batch, heads, *shape), or the reason.

    `rows` in a tile are those of the sweep in torch. `classes_at` (batch | 1, kv_len): classes by place; the first is
    then that of special tokens.
    """
    vocabulary = classes() if classes_at is None else dataclasses.replace(classes(), names=("special", "b", "c"))
    chosen = statistics or (*DEFAULT, *(target(name) for name in DEFAULT_TARGETS), token_class(vocabulary.names))
    factor = Recorder(DEFAULT)._factors.of(call)
    scene = build_scene(
        call,
        range(call.problem.batch),
        vocabulary=vocabulary,
        targets=DEFAULT_TARGETS,
        factor=factor,
        classes=classes_at,
    )
    _, taken = sweep(scene, chosen, rows=rows, backend=backend if rows is None else "torch")
    return {
        name: (part.sum.numpy(), part.count.numpy()) if hasattr(part, "sum") else part.reason
        for name, part in taken.items()
    }


def visible_of(problem, scores):
    """Which keys the model lets a query see, (batch, heads, q_len, kv_len)."""
    return (scores > -1e30).expand(problem.batch, problem.heads, -1, -1).numpy()


def expect(call, *, classes_at=None):
    """The same from the oracle."""
    problem = call.problem
    weights, sink, scores = weights_of(problem)
    visible = visible_of(problem, scores)
    every = []
    for b in range(problem.batch):
        facts = facts_of(call, b, classes_at)
        heads = [
            statistics_of(weights[b, h], visible[b, h], facts, sinks=sink[b, h], scores=scores[b, h].numpy())
            for h in range(problem.heads)
        ]
        one = {n: tuple(np.stack([np.asarray(h[n][i], dtype=float) for h in heads]) for i in (0, 1)) for n in heads[0]}
        seen = visible[b, 0] & facts.k_keep[None]
        rows = [i for i in np.flatnonzero(facts.q_keep) if seen[i].any()]
        residual = None if call.residual is None else call.residual[b].double().numpy()
        output = call.output[b].double().numpy()
        one |= outputs_of(output, call.projection.weight.double().numpy(), residual, rows)
        one |= alike_of(weights[b].numpy(), visible[b], facts, sink[b].numpy())
        one |= written_of(output, [i for i in rows if (visible[b][:, i] & facts.k_keep).any(-1).all()])
        every.append(one)
    return {n: tuple(np.stack([one[n][i] for one in every]) for i in (0, 1)) for n in every[0]}


def facts_of(call, b, classes_at=None):
    problem, vocabulary = call.problem, classes()

    def row(tensor, length):
        return np.ones(length, dtype=bool) if tensor is None else tensor[b].numpy()

    ids = call.keys.ids is not None
    return Facts(
        q_keep=row(call.queries.keep, problem.q_len),
        k_keep=row(call.keys.keep, problem.kv_len),
        q_ids=call.queries.ids[b].numpy() if call.queries.ids is not None else None,
        k_ids=call.keys.ids[b].numpy() if ids else None,
        special=frozenset(torch.where(vocabulary.special)[0].tolist()),
        class_of=dict(enumerate(vocabulary.table.tolist())),
        classes=3,
        cross=call.site.cross,
        offset=problem.q_offset or 0,
        sink=isinstance(problem.normaliser, Softmax) and not problem.normaliser.plain,
        class_at=None if classes_at is None else classes_at[b].numpy(),
        special_at=None if classes_at is None else classes_at[b].numpy() == 0,
    )


def told_otherwise(make):
    """What the oracle says if it takes 90 % of a row for a little less or more: where a row has it but for rounding."""
    found = []
    for ninety in (oracle.NINETY - 4e-6, oracle.NINETY + 4e-6):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(oracle, "NINETY", ninety)
            found.append(make())
    return found


def assert_same(got, want, *, names=None, atol=1e-5, level=0, again=None):
    """Equal values (sum / count), and equal counts.

    An argmax rate may differ by `level` rows (of each head), and a span of 90 % be what `again`, which makes `want`
    anew, tells with 90 % being a little less or more.
    """
    for name in names or want:
        sums, counts = got[name]
        np.testing.assert_allclose(counts, want[name][1], rtol=1e-5, atol=1e-6, err_msg=f"count of {name}")
        scale = np.maximum(np.where(want[name][1] > 0, want[name][1], 1.0), 1e-12)
        factor = 1.0 if name == "logit_max" else scale
        found, wanted = sums / factor, want[name][0] / factor
        if name.endswith("_argmax"):
            found = np.where(np.abs(sums - want[name][0]) <= level, wanted, found)
        if again is not None and name.startswith("span90") and not np.allclose(found, wanted, rtol=1e-5, atol=atol):
            for other in told_otherwise(again):
                near = np.isclose(found, other[name][0] / factor, rtol=1e-5, atol=atol)
                found = np.where(near, wanted, found)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=atol, err_msg=name)
