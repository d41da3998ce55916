"""Longformer's attention: a window for all tokens, and a few global ones with projections of their own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from multihead.attend.check import check_mask
from multihead.error import MultiheadError
from multihead.layer.base import Attends
from multihead.layer.call import check_inputs, check_mask_kind, check_visible
from multihead.layer.check import check_counts, divided
from multihead.layer.group import HeadGroup
from multihead.layer.part import zero_bias
from multihead.layer.support import Support
from multihead.pattern import Pattern, band, padding

_NAMES = ("q_proj", "k_proj", "v_proj")


class LongformerAttention(Attends):
    """Tokens see a window around them and the global tokens; global tokens see everything.

    Row i that is not global: `softmax(q_i . k_j)` over the j with `|i - j| <= window / 2` or j global. A global row:
    `softmax(q'_i . k'_j)` over all j, with queries, keys and values of a second set of projections. Beltagy et al.,
    "Longformer" (2020), arXiv:2004.05150. Rows that are not global see global keys through the first set. Cost and
    memory are O(length * (window + global tokens)): the global rows are a second attention call of their own, and take
    the place of what the first gave them.

    It looks both ways; `mask=causal()` makes a causal one of it. A query that may attend to no key gets 0 from every
    head. It has no cache. A watcher sees two calls: the heads at all rows, and, as so many heads more, those at the
    global rows in order, filled up with others where a sequence has fewer.

    Args:
        embed_dim: Width of the input and of the output.
        heads: Number of heads.
        window: Keys on both sides together, the query's own besides; even: `attention_window` of transformers.
        head_dim: Width of a head; None for `embed_dim / heads`.
        bias: Whether the projections have one.
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        q_proj, k_proj, v_proj: (heads * head_dim, embed_dim).
        global_q_proj, global_k_proj, global_v_proj: Likewise, for the global rows.
        out_proj: (embed_dim, heads * head_dim).

    Raises:
        MultiheadError: Sizes that do not divide or are not positive, a window that is not even, a dropout outside of
            0 <= p < 1.

    Example:
        >>> layer = LongformerAttention(64, heads=4, window=8)
        >>> layer(torch.randn(2, 100, 64), global_tokens=[0]).shape
        torch.Size([2, 100, 64])
    """

    SUPPORT: ClassVar[Support] = Support(cross=False, cached=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int = 8,
        *,
        window: int,
        head_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dropout=dropout, backend=backend)
        check_counts({"embed_dim": embed_dim, "heads": heads, "window": window})
        if window % 2:
            raise MultiheadError(
                asked="an even window, half of it on each side, the query's own key besides",
                arrived=f"window={window}",
                remedy=f"window={window - 1} or {window + 1}",
            )
        head_dim = divided(embed_dim, heads) if head_dim is None else head_dim
        self.groups = (HeadGroup(heads, head_dim),)
        self.embed_dim, self.heads, self.head_dim, self.window = embed_dim, heads, head_dim, window
        for name in _NAMES:
            self.add_module(name, nn.Linear(embed_dim, heads * head_dim, bias=bias))
            self.add_module(f"global_{name}", nn.Linear(embed_dim, heads * head_dim, bias=bias))
        self.out_proj = nn.Linear(heads * head_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, biases 0; the global projections start as the others do, as published."""
        for name in (*_NAMES, "out_proj"):
            linear: nn.Linear = getattr(self, name)
            nn.init.xavier_uniform_(linear.weight)
            zero_bias(linear)
        for name in _NAMES:
            getattr(self, f"global_{name}").load_state_dict(getattr(self, name).state_dict())

    def forward(
        self,
        query: Tensor,
        *,
        global_tokens: Bool[Tensor, "*batch length"] | Sequence[int] = (),
        mask: Pattern | Tensor | None = None,
    ) -> Float[Tensor, "batch length embed_dim"]:
        """Self-attention.

        Args:
            query: (batch, length, embed_dim).
            global_tokens: Which tokens are global: their positions from 0, the same in each sequence, or a boolean
                tensor (batch, length) or (length,), True = global.
            mask: Pairs to keep to besides, for all rows: a pattern such as `padding(keep)`, or a boolean tensor
                (length, length) or (batch | 1, heads | 1, length | 1, length | 1), True = attend.

        Raises:
            MultiheadError: Shapes that do not belong together, global tokens that there are not, or anything that
                `multihead.attention` refuses.
        """
        check_inputs(self, {"query": query})
        check_mask_kind(mask)
        check_visible(mask)
        tokens = GlobalTokens.read(global_tokens, query)
        mask = _checked(mask, self.heads, query)
        heads = self._attended(query, query, "", self._local_mask(tokens, mask, query))
        if tokens.places.shape[1]:
            found = self._attended(tokens.of(query), query, "global_", tokens.rows_of(mask, query))
            heads = tokens.put(found, heads)
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def widths(self) -> dict[str, int]:
        """Input widths of query, key and value, which are one tensor here."""
        return dict.fromkeys(("query", "key", "value"), self.embed_dim)

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, heads={self.heads}, head_dim={self.head_dim}, window={self.window}"
        shown += f", dropout={self.dropout:g}" if self.dropout else ""
        return shown + (f", backend={self.backend!r}" if self.backend != "auto" else "")

    def _attended(self, rows: Tensor, x: Tensor, prefix: str, mask: Pattern | Tensor | None) -> Tensor:
        """(batch, heads, rows, head_dim) by one set of projections."""
        q, k, v = (
            getattr(self, f"{prefix}{name}")(given).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for name, given in zip(_NAMES, (rows, x, x), strict=True)
        )
        return self.attended((q, k, v), {"mask": mask})

    def _local_mask(self, tokens: "GlobalTokens", mask: Pattern | Tensor | None, x: Tensor) -> Pattern | Tensor:
        """The window and the columns of the global tokens, within the mask."""
        seen = band(self.window // 2, self.window // 2)
        if tokens.places.shape[1]:
            seen = seen | _keys(tokens.flags)
        if mask is None or isinstance(mask, Pattern):
            return seen if mask is None else seen & mask
        return seen.mask(x.shape[1], x.shape[1], device=x.device) & mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GlobalTokens:
    """The global tokens of a call.

    Args:
        flags: (batch | 1, length), True = global.
        places: (batch | 1, most of them in a sequence): where they stand; other tokens fill up the shorter rows.
        real: Likewise: False for what fills up.
    """

    flags: Bool[Tensor, "_ length"]
    places: Int[Tensor, "_ most"]
    real: Bool[Tensor, "_ most"]

    @classmethod
    def read(cls, given: Tensor | Sequence[int], x: Tensor) -> "GlobalTokens":
        """Those that were asked for, of inputs (batch, length, width)."""
        batch, length = x.shape[:2]
        if not isinstance(given, Tensor):
            listed = sorted(set(given)) if _are_whole(given) else [-1]
            if not all(0 <= place < length for place in listed):
                raise _misfit(f"global_tokens={given!r}"[:200], batch, length)
            places = torch.tensor(listed, dtype=torch.long, device=x.device)[None]
            flags = torch.zeros(1, length, dtype=torch.bool, device=x.device).index_fill(1, places[0], True)  # noqa: FBT003
            return cls(flags=flags, places=places, real=torch.ones_like(places, dtype=torch.bool))
        if given.dtype != torch.bool or tuple(given.shape) not in ((length,), (1, length), (batch, length)):
            raise _misfit(f"{given.dtype} of shape {tuple(given.shape)}", batch, length)
        flags = given.to(x.device).view(-1, length)
        counts = flags.sum(1, keepdim=True)
        most = int(counts.max()) if flags.numel() else 0
        # Stable, so that global tokens come first and in order.
        order = flags.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :most]
        real = torch.arange(most, device=x.device) < counts
        return cls(flags=flags, places=order, real=real)

    def of(self, x: Tensor) -> Float[Tensor, "batch most width"]:
        """The global tokens of inputs (batch, length, width)."""
        # Expanded by hand, as `take_along_dim` fixes the sizes in a graph.
        return x.gather(1, self.places[..., None].expand(x.shape[0], -1, x.shape[2]))

    def rows_of(self, mask: Pattern | Tensor | None, x: Tensor) -> Pattern | Tensor | None:
        """The mask of the global rows: (batch | 1, heads | 1, most | 1, length | 1)."""
        if mask is None or (isinstance(mask, Pattern) and not mask.positional):
            return mask
        keys = torch.arange(x.shape[1], device=x.device)
        if len(self.places) == 1:
            (rows,) = self.places
            if isinstance(mask, Pattern):
                return mask.allows(rows, keys)
            return mask if mask.shape[2] == 1 else mask.index_select(2, rows)
        if isinstance(mask, Pattern):
            # Only the rows that are global somewhere, not all of them.
            rows, places = self.places.unique(return_inverse=True)
            four = mask.allows(rows, keys)
        else:
            four, places = mask, self.places
        if four.shape[2] == 1:
            return four
        return four.expand(len(places), -1, -1, -1).take_along_dim(places[:, None, :, None], 2)

    def put(self, found: Tensor, heads: Tensor) -> Tensor:
        """Heads (batch, heads, length, head_dim) with those of the global rows (batch, heads, most, head_dim)."""
        index = self.places[:, None, :, None].expand_as(found)
        return heads.scatter(2, index, torch.where(self.real[:, None, :, None], found, heads.gather(2, index)))


def _are_whole(given: object) -> bool:
    return isinstance(given, Iterable) and all(_is_whole(place) for place in cast(Iterable[object], given))


def _is_whole(place: object) -> bool:
    return isinstance(place, Integral) and place is not True and place is not False


def _checked(mask: Pattern | Tensor | None, heads: int, x: Tensor) -> Pattern | Tensor | None:
    """The mask in four dimensions, or as a pattern where it is of keys alone: that needs no length x length numbers."""
    if not isinstance(mask, Tensor):
        return mask
    batch, length = x.shape[:2]
    four = check_mask(mask, (batch, heads, length, length), x.device)
    return _keys(four[:, 0, 0]) if four.shape[1:] == (1, 1, length) else four


def _keys(flags: Tensor) -> Pattern:
    """The keys of flags (batch | 1, length): a pattern of one row would be for a batch of 1."""
    return padding(flags[0] if len(flags) == 1 else flags)


def _misfit(arrived: str, batch: int, length: int) -> MultiheadError:
    return MultiheadError(
        asked=f"global_tokens: positions from 0 to {length - 1}, or booleans ({batch}, {length}) or ({length},)",
        arrived=arrived,
        remedy="pass [0] for the first token of each sequence, or `global_attention_mask.bool()`",
    )
