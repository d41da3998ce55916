"""The table of numbers that moved, as `compare` prints it."""

import re

import numpy as np
import pytest

from measure.role.test_label import record
from multihead.cli import compare as door
from multihead.measure.role import compare
from multihead.record import HeadStatistics
from multihead.workflow import Compared


def told(capfd, a, b):
    capfd.readouterr()
    door._tell(Compared(record(a), record(b)), door.Path("page"))
    return capfd.readouterr().out


def names(out):
    return re.findall(r"^(\w+) +texts ", out, re.MULTILINE)


def test_numbers_that_moved_farthest_on_their_own_scale_come_first(capfd):
    before = {"a": [0.0, 1.0], "b": [0.0, 1000.0], "c": [0.0, 0.01], "still": [0.3, 0.4], "gone": [0.1, np.nan]}
    after = {"a": [0.1, 1.0], "b": [1.0, 1000.0], "c": [0.005, 0.01], "still": [0.3, 0.4], "gone": [np.nan, 0.2]}
    out = told(capfd, before, after)
    assert names(out) == ["c", "a", "b"]
    assert "more: " not in out


def test_heads_that_are_apart_go_before_size(monkeypatch):
    half = {"a": 0.01, "b": 1.0}
    monkeypatch.setattr(
        HeadStatistics, "interval", lambda s, name, level=0.95: (s.value(name) - half[name], s.value(name) + half[name])
    )
    found = compare(record({"b": [0.0, 1.0], "a": [0.0, 1.0]}), record({"b": [0.9, 1.0], "a": [0.1, 1.0]}))
    assert [drift.quantity.name for drift in door._moved(found)] == ["a", "b"]


def test_baselines_and_counts_of_rows_say_nothing_of_the_heads(capfd):
    values = {name: [0.1, 0.2] for name in ("previous", "previous_even", "rows_all")}
    moved = {name: [0.3, 0.2] for name in values}
    assert names(told(capfd, values, moved)) == ["previous"]


@pytest.mark.parametrize("more", [0, 3])
def test_what_is_not_shown_is_counted(capfd, more):
    count = door._SHOWN + more
    before = {f"n{i}": [0.0, 1.0] for i in range(count)}
    after = {f"n{i}": [(i + 1) / (2 * count), 1.0] for i in range(count)}
    out = told(capfd, before, after)
    assert names(out) == [f"n{i}" for i in reversed(range(more, count))]
    assert ("and 3 more: the page and --json have them all" in out) == bool(more)
