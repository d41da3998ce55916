"""What a selector is: it looks at queries and keys and says which pairs to attend to."""

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float
from torch import Tensor

from multihead.pattern import Pattern
from multihead.pattern.chosen import Chosen

__all__ = ["Chosen", "Selector"]


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
