"""A pattern as text, tensors and numbers: what a compiled graph can hold of it.

Tensors stand in the text as `#d0`, `#d1`, ..., numbers as `{0}`, `{1}`, ...: a graph then serves any pattern of the
same form, with other tensors of ids or at another offset. Written so that torch.compile can follow it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from multihead.error import MultiheadError
from multihead.pattern import Pattern, Tile, parse_pattern
from multihead.pattern.algebra import And, Constant, Join, Not, Shifted
from multihead.pattern.chosen import Chosen
from multihead.pattern.formed import Formed
from multihead.pattern.heads import PerHead
from multihead.pattern.held import Held
from multihead.pattern.opaque import Opaque
from multihead.pattern.places import Pairs
from multihead.pattern.relative import Prefix
from multihead.pattern.tokens import Match, Padding


@dataclass(slots=True)
class Spelling:
    """A pattern spelled out: begin with two empty lists, which grow as parts of the pattern are added.

    Args:
        tensors: What the pattern holds, in the order of their names.
        numbers: Its whole numbers that may change from call to call.
    """

    tensors: list[Tensor]
    numbers: list[int]

    def spell(self, pattern: Pattern) -> str:
        """The text of a pattern; its tensors and numbers are added to the lists.

        Raises:
            MultiheadError: It is a pattern of a kind that has no text.
        """
        if isinstance(pattern, Join):
            sign = " & " if isinstance(pattern, And) else " | "
            return "(" + sign.join([self.spell(part) for part in pattern.parts]) + ")"
        if isinstance(pattern, Not):
            return "~" + self.spell(pattern.part)
        if isinstance(pattern, Shifted):
            shift = self.spell(pattern.part) + ".at(" + self._number(pattern.queries)
            return shift + (", " + self._number(pattern.keys) + ")" if pattern.keys else ")")
        if isinstance(pattern, PerHead):
            return "per_head(" + ", ".join([self.spell(part) for part in pattern.parts]) + ")"
        return self._leaf(pattern)

    def _leaf(self, pattern: Pattern) -> str:
        if isinstance(pattern, Formed):
            return pattern.form
        if isinstance(pattern, Constant):
            return "everything" if pattern.tile_class == Tile.FULL else "nothing"
        if isinstance(pattern, Prefix):
            return "prefix(" + self._number(pattern.length) + ")"
        return self._holding(pattern)

    def _holding(self, pattern: Pattern) -> str:
        """A pattern that holds tensors."""
        if isinstance(pattern, Padding):
            return "padding(" + self._tensor(pattern.keep) + ")"
        if isinstance(pattern, Match):
            keys = "" if pattern.keys is pattern.ids else ", " + self._tensor(pattern.keys)
            return pattern.form + "(" + self._tensor(pattern.ids) + keys + ")"
        if isinstance(pattern, Pairs):
            rows = "" if pattern.rows is None else ", " + self._number(pattern.rows)
            return "pairs(" + self._tensor(pattern.table) + rows + ")"
        if isinstance(pattern, Chosen):
            bits, numbers = self._tensor(pattern.bits), [pattern.kv_len, pattern.block, pattern.span]
            numbers += [pattern.q_len, pattern.first, pattern.start]
            return "chosen(" + ", ".join([bits, *[self._number(number) for number in numbers]]) + ")"
        told = "a function of your own" if isinstance(pattern, Opaque) else type(pattern).__name__
        raise MultiheadError(
            asked="a pattern in a compiled or exported graph",
            arrived=told + ", which has no text form",
            remedy="build it from the factories and &, |, ~, or pass a boolean tensor",
        )

    def _tensor(self, held: Held) -> str:
        self.tensors.append(held.on("cpu"))
        return "#d" + str(len(self.tensors) - 1)

    def _number(self, number: int) -> str:
        self.numbers.append(number)
        return "{" + str(len(self.numbers) - 1) + "}"


def read(text: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Pattern:
    """The pattern that was spelled: text, tensors and numbers as `Spelling` has them."""
    return parse_pattern(text.format(*numbers), {f"d{place}": tensor for place, tensor in enumerate(tensors)})
