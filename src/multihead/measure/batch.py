"""What the model is fed in one pass, and which document each row belongs to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from jaxtyping import Int
from torch import Tensor

from multihead.error import MultiheadError, kind_and_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one row whose links are kept for the reader (see `multihead.record.Example`).

    Args:
        row: Row of the batch.
        start: First place of the stretch in that row.
        units: For each place from `start` the number of the unit (word, patch, moment) it belongs to, from 0; -1 for
            places that belong to none.
        texts: Text of each unit.
        before: Tokens of the same document in earlier chunks, so that places can be told in the whole document.
        side: Which input the places are of: `"input_ids"`, `"decoder_input_ids"`, `"pixel_values"`, ...
        grid: Rows and columns where the units lie on a picture, or None.
        picture: PNG of the picture or the spectrogram, or None.
    """

    row: int
    start: int
    units: tuple[int, ...]
    texts: tuple[str, ...]
    before: int = 0
    side: str = "input_ids"
    grid: tuple[int, int] | None = None
    picture: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One forward pass of `observe`.

    Rows of different documents in one batch are measured apart, but padding them to one length can move a result by a
    rounding error. Where a record must not depend on a document's neighbours, give a batch rows of one document only.

    Args:
        inputs: What the model gets: `model(**inputs)`.
        document: For each row its document, as an index into `documents` of `observe`.
        classes: For each place of an input, by the input's name, the number of its class among the class names (the
            class of the whole word a token belongs to, patch or register of a picture). None: by token id alone.
        spans: Stretches whose links are kept.

    Raises:
        MultiheadError: The inputs are not by name, or the documents are no indices.

    Example:
        >>> Batch(inputs={"input_ids": torch.tensor([[5, 6, 7]])}, document=(0,)).document
        (0,)
    """

    inputs: Mapping[str, Tensor]
    document: tuple[int, ...]
    classes: Mapping[str, Int[Tensor, "batch length"]] | None = None
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        inputs, document = cast(object, self.inputs), cast(object, self.document)
        if not isinstance(inputs, Mapping):
            raise MultiheadError(
                asked="the inputs of a batch by name: model(**inputs)",
                arrived=kind_and_text(inputs),
                remedy='pass inputs={"input_ids": ids}, or what a tokenizer returned',
            )
        if lists := [str(name) for name, value in cast(Mapping[object, object], inputs).items() if _is_plain(value)]:
            raise MultiheadError(
                asked="tensors as the inputs of a batch",
                arrived=f"a list as {lists[0]}",
                remedy='pass tensors: tokenizer(text, return_tensors="pt"), or torch.tensor([ids])',
            )
        rows = cast(Sequence[object], document) if isinstance(document, Sequence) else [None]
        if not rows or not all(type(row) is int for row in rows):
            raise MultiheadError(
                asked="for each row of the batch its document, as an index",
                arrived=f"document={document!r:.60}",
                remedy="pass document=(0,) for one row of the first document, (0, 0) for two",
            )
        object.__setattr__(self, "document", tuple(rows))


def _is_plain(value: object) -> bool:
    return isinstance(value, list | tuple) and not any(isinstance(one, Tensor) for one in cast(Sequence[object], value))
