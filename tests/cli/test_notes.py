"""What the notes say is said once."""

from dataclasses import replace

import pytest

import multihead as mh
from multihead.cli.notes import lines_of
from multihead.record import Note
from workflow.fakes import LetterTokenizer, bert

NO_IDS = "the queries or the keys have no token ids"


@pytest.fixture(scope="module")
def record():
    return mh.checkup(bert(layers=1), LetterTokenizer(), ["a cat, a dog."], repeats=1).record


def with_notes(record, *texts, repeats=(), reads="text"):
    return replace(
        record,
        texts=replace(record.texts, notes=tuple(Note(about=a, quantity=q, text=t) for a, q, t in texts)),
        repeats=replace(record.repeats, notes=tuple(Note(about=a, quantity=q, text=t) for a, q, t in repeats)),
        reads=reads,
    )


def test_statistics_and_places_are_named_in_one_line(record):
    names = ("same_token", "same_token_argmax", "induction")
    noted = with_notes(record, *((place, name, NO_IDS) for name in names for place in ("encoder", "cross")))
    assert list(lines_of(noted)) == [f"encoder, cross: same_token, same_token_argmax, induction: {NO_IDS}"]


def test_places_with_other_statistics_have_lines_of_their_own(record):
    noted = with_notes(record, ("", "entropy", "a"), ("L0", "", "a"), ("", "", "b"), ("L1", "", "a"))
    assert list(lines_of(noted)) == ["entropy: a", "L0, L1: a", "b"]


def test_many_are_counted(record):
    noted = with_notes(record, *((f"L0.H{i}", "entropy", "a") for i in range(9)))
    assert list(lines_of(noted)) == ["L0.H0, L0.H1, L0.H2, L0.H3, L0.H4, L0.H5 and 3 more: entropy: a"]


def test_what_the_repeats_say_as_well_is_said_once(record):
    noted = with_notes(record, ("", "", "a"), repeats=[("", "", "a"), ("", "", "c")])
    assert list(lines_of(noted)) == ["a", "on the repeats: c"]
    assert list(lines_of(replace(noted, repeats=None))) == ["a"]


@pytest.mark.parametrize("reads", ["images", "audio"])
def test_that_pictures_have_no_token_ids_goes_without_saying(record, reads):
    notes = (("", "same_token", NO_IDS), ("", "special_token", "the keys have no token ids"), ("", "", "a"))
    assert list(lines_of(with_notes(record, *notes, reads=reads))) == ["a"]
    assert len(list(lines_of(with_notes(record, *notes)))) == 3
