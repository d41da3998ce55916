"""What the model is fed in one pass, and which document each row belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One forward pass of `observe`.

    Rows of different documents in one batch are measured apart, but padding them to one length can move a result by a
    rounding error. Where a record must not depend on a document's neighbours, give a batch rows of one document only.

    Args:
        inputs: What the model gets: `model(**inputs)`.
        document: For each row its document, as an index into `documents` of `observe`.

    Example:
        >>> Batch(inputs={"input_ids": torch.tensor([[5, 6, 7]])}, document=(0,)).document
        (0,)
    """

    inputs: Mapping[str, Tensor]
    document: tuple[int, ...]
