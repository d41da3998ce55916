"""What a selector is: it looks at queries and keys and says which pairs to attend to."""

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float
from torch import Tensor

from multihead.pattern import Pattern
from multihead.pattern.chosen import Chosen

__all__ = ["Chosen", "Kept", "Selector"]

# What a selector keeps of the keys it has seen, beside a cache; only it knows what that is.
Kept = object


class Selector(ABC):
    """Chooses from the content of one call which keys each query attends to.

    `chosen = selector.select(q, k, mask=causal())`, then `attention(q, k, v, mask=causal() & chosen)`: exact softmax
    attention over what was chosen. A choice is no function with a derivative: it is made under `torch.no_grad`, and
    gradients flow through the attention alone, to the queries, keys and values that were chosen.
    """

    __slots__ = ()

    @abstractmethod
    def select(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads kv_len head_dim"],
        *,
        mask: Pattern | Bool[Tensor, "..."] | None = None,
        q_offset: int | None = None,
    ) -> Pattern:
        """What to attend to, for `attention(q, k, v, mask=mask & chosen)` with the same `q_offset`.

        Args:
            q: Queries, as they are multiplied.
            k: Keys, as they are multiplied; query head h reads kv head h // group.
            mask: What may be chosen, as `attention` takes it; None allows all. What it hides has no part in the choice.
            q_offset: Position of the first query, where the first key has position 0; must be given where the lengths
                differ and the mask, or the selector, depends on positions.

        Returns:
            A pattern of this very call's queries and keys; what the mask hides may be in it.

        Raises:
            MultiheadError: Shapes that do not belong together.
        """

    def select_on(
        self, q: Tensor, k: Tensor, kept: Kept, *, mask: Pattern | Tensor | None, q_offset: int | None
    ) -> tuple[Pattern, Kept]:
        """`select` for a text that grows: what was found out about its first keys need not be found out again.

        Args:
            q: As in `select`.
            k: All keys so far; the first of them are those of the call before, unchanged.
            kept: What the call before gave back; None at first, and where keys were taken away.
            mask: As in `select`.
            q_offset: As in `select`.

        Returns:
            What to attend to, and what to hand over at the next call; None where nothing is kept.
        """
        return self.select(q, k, mask=mask, q_offset=q_offset), None
