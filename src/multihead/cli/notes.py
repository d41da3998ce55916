"""The notes of a record as lines for people: what differs in the statistic or the place alone is told once."""

from collections.abc import Iterator, Mapping, Sequence

from multihead.measure.statistic.copies import NO_IDS as NO_IDS_ON_A_SIDE
from multihead.measure.statistic.special_token import NO_IDS as NO_IDS_TO_MARK
from multihead.measure.statistic.token_class import NO_IDS as NO_IDS_TO_CLASS
from multihead.record import CheckupRecord, HeadStatistics, Note

_NO_IDS = frozenset({NO_IDS_ON_A_SIDE, NO_IDS_TO_MARK, NO_IDS_TO_CLASS})
"""Said where a call has no tokens: of pictures and recordings that goes without saying."""
_NAMED = 6


def lines_of(record: CheckupRecord) -> Iterator[str]:
    """One line for each thing to be said, with the statistics and the places it is about.

    Args:
        record: The checkup.

    Example:
        `"same_token, induction: the queries or the keys have no token ids"`
    """
    told: dict[str, list[Note]] = {}
    parts: dict[str, HeadStatistics | None] = {"": record.texts, "on the repeats: ": record.repeats}
    said: set[Note] = set()
    for where, part in parts.items():
        for note in part.notes if part is not None else ():
            if note not in said and not (record.reads != "text" and note.text in _NO_IDS):
                said.add(note)
                told.setdefault(f"{where}{note.text}", []).append(note)
    for text, notes in told.items():
        for abouts, names in _places(notes).items():
            yield "".join(f"{_some(words)}: " for words in (abouts, names) if words) + text


def _places(notes: Sequence[Note]) -> Mapping[tuple[str, ...], tuple[str, ...]]:
    """The statistics that the same is said of, by the places it is said of; places with the same statistics as one."""
    names: dict[str, list[str]] = {}
    for note in notes:
        names.setdefault(note.about, []).append(note.quantity)
    abouts: dict[tuple[str, ...], list[str]] = {}
    for about, quantities in names.items():
        abouts.setdefault(tuple(q for q in dict.fromkeys(quantities) if q), []).append(about)
    return {tuple(about for about in each if about): quantities for quantities, each in abouts.items()}


def _some(words: Sequence[str]) -> str:
    rest = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
