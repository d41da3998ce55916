"""One pattern for each query head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from multihead.error import MultiheadError, check_kinds
from multihead.pattern.algebra import Pattern
from multihead.pattern.check import entries, merged_batch
from multihead.pattern.held import Kept
from multihead.pattern.law import Facts, farthest, together
from multihead.pattern.show import Spot

_ASKED = "per_head(patterns): one pattern for each head, each the same for all heads"
_REMEDY = "pass [pattern_of_head_0, pattern_of_head_1, ...]"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PerHead(Pattern):
    """Head h has part h."""

    parts: tuple[Pattern, ...]

    def _facts(self) -> Facts:
        facts = [part._facts() for part in self.parts]
        return Facts(
            batch=merged_batch([fact.batch for fact in facts]),
            heads=len(self.parts),
            positional=any(fact.positional for fact in facts),
            reach=(farthest([fact.reach[0] for fact in facts]), farthest([fact.reach[1] for fact in facts])),
            window=facts[0].window if all(fact.window == facts[0].window for fact in facts) else None,
            period=together([fact.period for fact in facts]),
        )

    def _contains(self, q: Int[Tensor, "_ 1 rows 1"], k: Int[Tensor, "_ 1 1 cols"]) -> Bool[Tensor, "_ _ _ _"]:
        return torch.cat(torch.broadcast_tensors(*(part._contains(q, k) for part in self.parts)), 1)

    def _classify(self, rows: Int[Tensor, " rows"], cols: Int[Tensor, " cols"]) -> Int8[Tensor, "_ _ _ _"]:
        return torch.cat(torch.broadcast_tensors(*(part._classify(rows, cols) for part in self.parts)), 1)

    def _text(self) -> str:
        return f"per_head({', '.join(part._text() for part in self.parts)})"

    def _identity(self) -> object:
        return self.parts

    def _held(self) -> tuple[Kept, ...]:
        return tuple(held for part in self.parts for held in part._held())

    def _offsets(self) -> frozenset[tuple[int, int]]:
        return frozenset[tuple[int, int]]().union(*(part._offsets() for part in self.parts))

    def _shifted(self, q_offset: int, k_offset: int) -> Pattern:
        return PerHead(tuple(part.at(q_offset=q_offset, k_offset=k_offset) for part in self.parts))

    def _words(self, spot: Spot) -> str:
        return self.parts[spot.head]._words(spot)


def per_head(patterns: Sequence[Pattern]) -> Pattern:
    """A pattern for each query head: head h sees what patterns[h] allows.

    Args:
        patterns: One for each head, in order; none of them may differ by head itself.

    Raises:
        MultiheadError: The list is empty, a part differs by head already, or batch sizes differ.

    Example:
        >>> from multihead.pattern import causal, distance
        >>> per_head([causal(), distance(1)]).mask(2, 2).int().tolist()
        [[[[1, 0], [1, 1]], [[0, 0], [1, 0]]]]
    """
    listed = entries(patterns, asked=_ASKED, remedy=_REMEDY)
    check_kinds({f"pattern of head {h}": part for h, part in enumerate(listed)}, (Pattern,), "a pattern")
    parts = cast(tuple[Pattern, ...], tuple(listed))
    if not parts or any(part.heads is not None for part in parts):
        raise MultiheadError(
            asked=_ASKED,
            arrived=f"{len(parts)} patterns"
            + "".join(f", {part} for {part.heads} heads" for part in parts if part.heads),
            remedy=_REMEDY,
        )
    # Here, so that the error comes from the line that mixes batch sizes.
    merged_batch([part.batch for part in parts])
    return PerHead(parts)
