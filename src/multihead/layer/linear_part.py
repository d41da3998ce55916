"""What linear heads learn and hold, and how their outputs are made of queries, keys and values."""

from typing import cast

import torch
from torch import Tensor, nn

from multihead.error import MultiheadError
from multihead.layer.angles import rotation_from
from multihead.layer.group import HeadGroup
from multihead.layer.linear_options import LinearScoring
from multihead.layer.scan_mask import Order
from multihead.position import Rotary
from multihead.scan import Drawn, Favor, FeatureMap, LinearState, linear_attention, linear_attention_full


class LinearPart(nn.Module):
    """The features and the decay of a group of linear heads.

    Args:
        options: What the heads are.
        group: Their sizes, settled, and their position.

    Attributes:
        options: As above.
        projection: The directions of `Favor`, (features, head_dim), saved with the module; otherwise None.
    """

    def __init__(self, options: LinearScoring, group: HeadGroup) -> None:
        super().__init__()
        _, kv_heads, head_dim, _ = group.sizes
        self.options, self.head_dim, self.position = options, head_dim, _position(group)
        options.check_heads(kv_heads, turned=self.position is not None)
        favor = options.features if isinstance(options.features, Favor) else None
        self.register_buffer("projection", None if favor is None else favor.draw(head_dim).projection)

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw the directions of `Favor` anew, as Performers do now and then in training; nothing for other features.

        Args:
            generator: Of random numbers on the CPU; None for torch's own.
        """
        if isinstance(self.options.features, Favor):
            drawn = self.options.features.draw(self.head_dim, generator=generator).projection
            cast(Tensor, self.projection).copy_(drawn)

    @property
    def width(self) -> int:
        """Features of a head: rows of its state."""
        features = self.options.features
        return features.count(self.head_dim) if isinstance(features, Favor) else self.head_dim

    @property
    def scale(self) -> float:
        """Factor of the products."""
        given = 1.0 if self.options.normalise else self.options.scale
        return self.head_dim**-0.5 if given is None else given

    @property
    def features(self) -> FeatureMap:
        """The feature map as it stands."""
        given = self.options.features
        return Drawn(projection=cast(Tensor, self.projection)) if isinstance(given, Favor) else given

    def forward(
        self, qkv: tuple[Tensor, Tensor, Tensor], order: Order, before: tuple[LinearState | None, int] | None
    ) -> tuple[Tensor, LinearState | None]:
        """Heads of one call.

        Args:
            qkv: Queries, keys and values (batch, heads, length, width).
            order: What each query sees.
            before: The state of earlier tokens and their number, where there is a cache.

        Returns:
            (batch, heads, q_len, v_head_dim), and the state after the last token; None where all see all.

        Raises:
            MultiheadError: An order that is not causal with a cache, a decay or a position.
        """
        q, k, v = qkv
        start = 0 if before is None else before[1]
        phi, normalise = self.features, self.options.normalise
        q, k = self._turned(phi.queries(q), start), self._turned(phi.keys(k), start)
        q = q if self.scale == 1 else q * self.scale
        if not order.causal:
            self._check_all_seen(cached=before is not None)
            return linear_attention_full(q, k, v, normalise=normalise, valid=order.valid), None
        made = linear_attention(
            q,
            k,
            v,
            log_decay=self._log_decay(v),
            normalise=normalise,
            state=None if before is None else before[0],
            reset=order.reset,
            valid=order.valid,
        )
        return made.out, made.state

    def _log_decay(self, like: Tensor) -> Tensor | None:
        """The decays: made of the numbers, as a buffer would be rounded with the module's weights."""
        if self.options.decay is None:
            return None
        wide = torch.promote_types(like.dtype, torch.float32)
        return torch.tensor(self.options.decay, dtype=wide, device=like.device)

    def _turned(self, x: Tensor, start: int) -> Tensor:
        if self.position is None:
            return x
        return rotation_from(self.position, start, x).apply(x)

    def _check_all_seen(self, *, cached: bool) -> None:
        told = {
            "a cache": cached,
            f"decay={self.options.decay}": self.options.decay is not None,
            "a position that turns": self.position is not None,
        }
        present = [what for what, there in told.items() if there]
        if present:
            raise MultiheadError(
                asked="linear heads of which each token sees all, also later ones: mask without causal()",
                arrived=", ".join(present)[:200],
                remedy="pass mask=causal(); without a cache, a decay and a position such heads see all",
            )


def _position(group: HeadGroup) -> Rotary | None:
    """What turns queries and keys, refused where it would have to turn earlier keys again."""
    position = group.position
    if position is None or (isinstance(position, Rotary) and not position.depends_on_length):
        return position
    raise MultiheadError(
        asked="a position of linear heads: Rotary(...) with angles that do not depend on the text's length, or None",
        arrived=f"{position}"[:200],
        remedy="they have no scores to which a bias could be added: use softmax heads, HeadGroup(...) alone",
    )
