"""What the reader of a record must know, gathered over heads and layers into as few sentences as say it all."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multihead.record import HeadAddress, Note

Array = NDArray[np.float64]
Place = tuple[str, int]

_LOST = {
    "scores": ("rows_nonfinite", "have NaN or infinite scores and count in no statistic of weights"),
    "outputs": ("output_norm", "have NaN or infinite outputs and count in no statistic of outputs"),
}


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to be said of a layer: the quantity it concerns, or `""`, and the sentence."""

    quantity: str
    text: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows that were left out, of how many, for each head of a layer."""

    rows: Array | int = 0
    of: Array | int = 0

    def __add__(self, other: "Lost") -> "Lost":
        return Lost(self.rows + other.rows, self.of + other.of)


def joined_losses(parts: Sequence[Mapping[str, Lost]]) -> dict[str, Lost]:
    """Losses of heads of one layer that were measured apart, side by side."""
    return {
        kind: Lost(
            np.concatenate([np.atleast_1d(part[kind].rows) for part in parts]),
            np.concatenate([np.atleast_1d(part[kind].of) for part in parts]),
        )
        for kind in parts[0]
    }


def gather_notes(
    document: str, remarks: Mapping[Place, Sequence[Remark]], lost: Mapping[Place, Mapping[str, Lost]]
) -> Iterator[Note]:
    """Notes of one document.

    Args:
        document: Its name.
        remarks: What is to be said of each layer.
        lost: For each layer the rows left out for NaN or infinity, by what held it: `"scores"`, `"outputs"`.
    """
    places = list(remarks)
    for remark in dict.fromkeys(remark for said in remarks.values() for remark in said):
        about = [place for place in places if remark in remarks[place]]
        for words in _about(about, places):
            yield Note(about=words, quantity=remark.quantity, text=remark.text)
    for kind, (quantity, words) in _LOST.items():
        yield from _lost(document, quantity, words, {place: lost[place][kind] for place in places})


def _lost(document: str, quantity: str, words: str, lost: Mapping[Place, Lost]) -> Iterator[Note]:
    heads = {
        HeadAddress(*place, head): (int(rows), int(of))
        for place, one in lost.items()
        for head, (rows, of) in enumerate(zip(np.atleast_1d(one.rows), np.atleast_1d(one.of), strict=True))
    }
    for rows, of in dict.fromkeys(heads.values()):
        about = [address for address, found in heads.items() if found == (rows, of)] if rows else []
        whole = len(about) == len(heads)
        for words_about in [""] if whole else [str(address) for address in about]:
            yield Note(about=words_about, quantity=quantity, text=f"{document}: {rows} of {of} rows {words}")


def _about(places: Sequence[Place], of: Sequence[Place]) -> list[str]:
    """The whole run, whole stacks, or single layers."""
    if len(places) == len(of):
        return [""]
    named: list[str] = []
    for stack in dict.fromkeys(stack for stack, _ in places):
        mine = [place for place in places if place[0] == stack]
        if stack and len(mine) == sum(other == stack for other, _ in of):
            named.append(stack)
        else:
            named += [f"{stack}.L{layer}" if stack else f"L{layer}" for _, layer in mine]
    return named
