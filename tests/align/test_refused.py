"""What no aligner can be built of or called with: refused in words, before anything is computed."""

import pytest
import torch

from align.by_hand import build, source, states
from multihead.align import (
    Bahdanau,
    Chunk,
    Coverage,
    Covered,
    LocalMonotonic,
    LocalPredictive,
    Luong,
    Monotonic,
    Steps,
    Walk,
)
from multihead.error import MultiheadError

pytestmark = pytest.mark.usefixtures("unhooked")
NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Bahdanau(0, 5, 4), "query_dim=0"),
        (lambda: Bahdanau(3, None, 4), "memory_dim=None"),
        (lambda: Bahdanau(3, 5, 4.0), "hidden=4.0"),
        (lambda: Bahdanau(3, 5, True), "hidden=True"),
        (lambda: Bahdanau(3, 5, 4, bias="no"), "bias as True or False"),
        (lambda: Bahdanau(3, 5, 4, normalised=1), "normalised as True or False"),
        (lambda: Bahdanau(3, 5, 4, coverage=True), "coverage as Coverage() or None"),
        (lambda: Coverage(start=-1.0), "start: a finite number of at least 0"),
        (lambda: Coverage(start=NAN), "start=nan"),
        (lambda: Coverage(start="0"), "start='0'"),
        (lambda: Luong(3, 5, score="dot"), "query_dim=3, memory_dim=5"),
        (lambda: Luong(3, 5, score="additive"), "score='additive'"),
        (lambda: Luong(3, 5, score=None), "score=None"),
        (lambda: Luong(3, 5, hidden=4), "which has no hidden width"),
        (lambda: Luong(3, 5, score="concat", hidden=0), "hidden=0"),
        (lambda: Luong(3, 5, local=4), "local as LocalMonotonic(width), LocalPredictive(width) or None"),
        (lambda: LocalMonotonic(-1), "width=-1"),
        (lambda: LocalMonotonic(2.0), "width=2.0"),
        (lambda: LocalPredictive(0), "width: a whole number of at least 1"),
        (lambda: LocalPredictive(-3), "width=-3"),
        (lambda: LocalPredictive(3, sigma=0), "sigma: a finite number above 0"),
        (lambda: LocalPredictive(3, sigma=NAN), "sigma=nan"),
        (lambda: LocalPredictive(3, sigma=torch.ones(1)), "sigma=tensor([1.])"),
        (lambda: Monotonic(3, 5, 4, noise=-1.0), "noise: a finite number of at least 0"),
        (lambda: Monotonic(3, 5, 4, offset=float("inf")), "offset=inf"),
        (lambda: Monotonic(3, 5, 4, chunk=2), "chunk as Chunk(width) or None"),
        (lambda: Monotonic(3, 5, 4, form="soft"), "form='soft'"),
        (lambda: Chunk(0), "width=0"),
    ],
)
def test_what_it_cannot_be_built_of(make, told):
    with pytest.raises(MultiheadError) as refused:
        make()
    assert told in str(refused.value)


VALUES = torch.ones(2, 6, 5)


@pytest.mark.parametrize(
    ("values", "keep", "told"),
    [
        (None, None, "values as a tensor (batch, memory_len, 5)"),
        ([[1.0]], None, "values as a tensor"),
        (VALUES[0], None, "values (6, 5)"),
        (VALUES[..., :4], None, "values (2, 6, 4)"),
        (VALUES.long(), None, "torch.int64"),
        (VALUES.double(), None, "values of torch.float64"),
        (VALUES.to("meta"), None, "on meta"),
        (VALUES, [True] * 6, "keep as a boolean tensor"),
        (VALUES, torch.ones(2, 6), "keep (2, 6), torch.float32"),
        (VALUES, torch.ones(2, 5, dtype=torch.bool), "keep (2, 5)"),
        (VALUES, torch.ones(2, 0, dtype=torch.bool), "keep (2, 0)"),
        (VALUES, torch.ones(6, dtype=torch.bool), "keep (6,)"),
        (VALUES, torch.ones(2, 6, dtype=torch.bool, device="meta"), "on meta"),
    ],
)
def test_what_it_cannot_remember(values, keep, told):
    with pytest.raises(MultiheadError) as refused:
        Bahdanau(3, 5, 4).remember(values, keep)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (None, "query as a tensor (batch, 3)"),
        (torch.ones(3), "query (3,)"),
        (torch.ones(2, 4, 3), "many queries go at once to aligner(queries, memory)"),
        (torch.ones(2, 5), "query (2, 5)"),
        (torch.ones(4, 3), "memory.select(rows) repeats it"),
        (torch.ones(2, 3).double(), "query of torch.float64"),
        (torch.ones(2, 3).int(), "query of torch.int32"),
    ],
)
def test_what_no_query_is(query, told):
    aligner = Bahdanau(3, 5, 4)
    with pytest.raises(MultiheadError) as refused:
        aligner.step(query, aligner.remember(VALUES))
    assert told in str(refused.value)


def test_one_query_where_many_are_asked_for():
    aligner = Bahdanau(3, 5, 4)
    with pytest.raises(MultiheadError, match=r"one goes to aligner\.step"):
        aligner(torch.ones(2, 3), aligner.remember(VALUES))


def test_a_query_elsewhere_than_a_memory_without_weights():
    aligner = Luong(5, 5, score="dot")
    with pytest.raises(MultiheadError, match="query on the device of the memory, cpu"):
        aligner.step(torch.ones(2, 5, device="meta"), aligner.remember(VALUES))


@pytest.mark.parametrize("memory", [None, VALUES, (VALUES, None)])
def test_a_memory_that_was_not_prepared(memory):
    with pytest.raises(MultiheadError, match=r"memory as what aligner\.remember\(values, keep\) gave"):
        Bahdanau(3, 5, 4).step(torch.ones(2, 3), memory)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: Bahdanau(3, 5, 7), "keys of width 7"),
        (lambda: Bahdanau(3, 6, 4), "values of width 6"),
        (lambda: Monotonic(3, 5, 4, chunk=Chunk(2)), "keys of width 4 and 4"),
    ],
)
def test_the_memory_of_another_aligner(other, told):
    maker = other()
    with pytest.raises(MultiheadError) as refused:
        Bahdanau(3, 5, 4).step(torch.ones(2, 3), maker.remember(torch.ones(2, 6, maker.memory_dim)))
    assert told in refused.value.arrived
    assert "prepare it with this one" in refused.value.remedy


@pytest.mark.parametrize("name", ["coverage", "local-m", "monotonic"])
@pytest.mark.parametrize("other", ["batch", "kind", "device"])
def test_the_state_of_something_else(name, other):
    aligner = build(name)
    memory, queries = aligner.remember(source(aligner)), states(aligner)
    state = aligner.step(queries[:, 0], memory).state
    if other == "kind":
        state = {"coverage": Steps(count=torch.zeros(2, dtype=torch.long))}.get(
            name, Covered(covered=torch.zeros(2, 6), loss=torch.zeros(2))
        )
        told = type(state).__name__
    elif other == "batch":
        state, told = state.select(torch.tensor([0, 0, 1])), "(3"
    else:
        fields = {"coverage": "covered", "local-m": "count", "monotonic": "standing"}
        moved = {fields[name]: getattr(state, fields[name]).to("meta")}
        kept = {"loss": getattr(state, "loss", None), "hard": getattr(state, "hard", None)}
        state = type(state)(**moved, **{k: v for k, v in kept.items() if v is not None})
        told = "on meta"
    with pytest.raises(MultiheadError) as refused:
        aligner.step(queries[:, 1], memory, state)
    assert told in refused.value.arrived
    assert "aligned.state of the step before" in refused.value.remedy


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bahdanau", "build the aligner with coverage=Coverage()"),
        ("general", "leave state out"),
        ("local-p", "leave state out"),
    ],
)
def test_a_state_where_steps_know_nothing_of_each_other(name, told):
    aligner = build(name)
    state = Covered(covered=torch.zeros(2, 6), loss=torch.zeros(2))
    with pytest.raises(MultiheadError) as refused:
        aligner.step(states(aligner)[:, 0], aligner.remember(source(aligner)), state)
    assert told in refused.value.remedy


def test_many_queries_at_once_of_coverage():
    aligner = build("coverage")
    assert not aligner.support.parallel
    with pytest.raises(MultiheadError, match="scores of each query that depend on the weights of those before it"):
        aligner(states(aligner), aligner.remember(source(aligner)))


def test_a_walk_that_changes_its_form():
    aligner = Monotonic(3, 5, 4)
    memory = aligner.remember(VALUES)
    state = aligner.step(torch.ones(2, 3), memory).state
    with pytest.raises(MultiheadError, match="the state of a step that was expected"):
        aligner.eval().step(torch.ones(2, 3), memory, state)
    hard = Walk(standing=state.standing, hard=True)
    with pytest.raises(MultiheadError, match="the state of a step that was hard"):
        aligner.train().step(torch.ones(2, 3), memory, hard)


def test_places_that_no_query_says():
    aligner = Luong(3, 5)
    with pytest.raises(MultiheadError, match=r"build it with local=LocalPredictive\(width\)"):
        aligner.places(torch.ones(2, 1, 3), aligner.remember(VALUES))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([0, 1], "rows as a tensor of row numbers"),
        (torch.tensor([0.0]), "torch.float32"),
        (torch.tensor([True, False]), "torch.bool"),
        (torch.tensor([[0]]), "shape (1, 1)"),
        (torch.tensor([0, 2]), "from 0 to 2"),
        (torch.tensor([-1]), "from -1 to -1"),
    ],
)
def test_rows_that_are_none(rows, told):
    aligner = Bahdanau(3, 5, 4, coverage=Coverage())
    memory = aligner.remember(VALUES)
    state = aligner.step(torch.ones(2, 3), memory).state
    for given in (memory, state):
        with pytest.raises(MultiheadError) as refused:
            given.select(rows)
        assert told in str(refused.value)
