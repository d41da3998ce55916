"""One attention call, checked: every backend, and every statistic, works from this."""

from dataclasses import dataclass, replace
from typing import get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attend import check
from multihead.attend.normaliser import Entmax, Normaliser, Sigmoid, Softmax
from multihead.error import check_kinds
from multihead.pattern import Pattern, Tile
from multihead.position import PositionBias

Index = slice | Tensor
ALL = slice(None)
_SOFTMAX = Softmax()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """The facts of one attention call.

    `out = dropout(normaliser(mask(softcap(scale * q @ k.T) + bias))) @ v`. Build it with `make_problem`, which checks
    everything. The tensors are the caller's own: read them, never write to them.

    Args:
        q: Queries (batch, heads, q_len, head_dim).
        k: Keys (batch, kv_heads, kv_len, head_dim); query head h reads kv head h // group.
        v: Values (batch, kv_heads, kv_len, v_head_dim).
        mask: A pattern, or True = attend (batch | 1, heads | 1, q_len | 1, kv_len | 1), or None: everything is allowed.
        bias: Added to the scores: a tensor (batch | 1, heads | 1, q_len | 1, kv_len | 1), a bias of positions, or None.
        scale: Factor of the products.
        softcap: c in c * tanh(scaled / c), or None.
        normaliser: How scores become weights.
        dropout: Share of the weights that is dropped; the others are divided by 1 - dropout.
        q_offset: Position of the first query, where the first key has position 0. None where q_len differs from kv_len
            and nothing says how they line up; then no field depends on it.
        places: Position of each query where they are some of those of a call and do not follow one another; None
            counts on from `q_offset`. Such a problem is there to be looked at, by `scores`, `allowed` and `bias_rows`;
            no backend knows of it.
    """

    q: Float[Tensor, "batch heads q_len head_dim"]
    k: Float[Tensor, "batch kv_heads kv_len head_dim"]
    v: Float[Tensor, "batch kv_heads kv_len v_head_dim"]
    mask: Pattern | Bool[Tensor, "_ _ _ _"] | None = None
    bias: Float[Tensor, "_ _ _ _"] | PositionBias | None = None
    scale: float
    softcap: float | None = None
    normaliser: Normaliser = _SOFTMAX
    dropout: float = 0.0
    q_offset: int | None = None
    places: Int[Tensor, " q_len"] | None = None

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.k.shape[1]

    @property
    def group(self) -> int:
        """Number of query heads that share a kv head."""
        return self.heads // max(self.kv_heads, 1)

    @property
    def q_len(self) -> int:
        """Number of queries."""
        return self.q.shape[2]

    @property
    def kv_len(self) -> int:
        """Number of keys."""
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        """Size of a query and of a key."""
        return self.q.shape[3]

    @property
    def v_head_dim(self) -> int:
        """Size of a value and of a head's output."""
        return self.v.shape[3]

    @property
    def wide(self) -> torch.dtype:
        """The dtype sums are kept in: float64 for float64 inputs, else float32."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def widen(self) -> "Problem":
        """The same problem with q, k and v in the dtype sums are kept in, so that many `scores` convert them once."""
        return replace(self, q=self.q.to(self.wide), k=self.k.to(self.wide), v=self.v.to(self.wide))

    def q_positions(self) -> Int[Tensor, " q_len"]:
        """Absolute position of each query: q_offset, q_offset + 1, ..., or its own where it has one."""
        if self.places is not None:
            return self.places
        first = self.q_offset or 0
        return torch.arange(first, first + self.q_len, device=self.q.device)

    def k_positions(self) -> Int[Tensor, " kv_len"]:
        """Absolute position of each key: 0, 1, ..."""
        return torch.arange(self.kv_len, device=self.q.device)

    def restrict(self, rows: Index) -> "Problem":
        """The same problem for some of its queries, at the positions they have.

        Args:
            rows: Indices of queries, from 0 whatever the offset.
        """

        def picked(given: object) -> object:
            per_row = isinstance(given, Tensor) and given.shape[2] > 1
            return given[:, :, rows] if isinstance(given, Tensor) and per_row else given

        return replace(
            self,
            q=self.q[:, :, rows],
            mask=picked(self.mask),
            bias=picked(self.bias),
            places=self.q_positions()[rows],
        )

    def allowed(self, rows: Index = ALL, cols: Index = ALL) -> Bool[Tensor, "_ _ _ _"] | None:
        """Which keys some queries may attend to.

        Args:
            rows: Indices of queries, from 0 whatever the offset.
            cols: Indices of keys.

        Returns:
            (batch | 1, heads | 1, rows, cols), True = attend, or None where everything is allowed.
        """
        if self.mask is None:
            return None
        if isinstance(self.mask, Tensor):
            return _cut(self.mask, (self.q_len, self.kv_len), rows, cols)
        q_pos = self.q_positions()[rows]
        if cols == ALL and isinstance(rows, slice) and self._sees_all(self.mask, q_pos):
            return None
        return self.mask.allows(q_pos, self.k_positions()[cols])

    def bias_rows(self, rows: Index = ALL, cols: Index = ALL) -> Float[Tensor, "_ _ _ _"] | None:
        """What is added to the scores of some queries.

        Args:
            rows: Indices of queries, from 0 whatever the offset.
            cols: Indices of keys.

        Returns:
            (batch | 1, heads | 1, rows, cols) in the dtype sums are kept in, or None where there is no bias.
        """
        return self._bias_rows(self.bias, rows, cols)

    def scores(
        self, rows: Index = ALL, cols: Index = ALL, heads: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "batch _ _ _"]:
        """The scores of some queries as the normaliser gets them: scale, softcap, bias, -inf where not allowed.

        Products are summed in float32 (float64 for float64 inputs); grouped keys are not copied. Gradients flow.

        Args:
            rows: Indices of queries, from 0 whatever the offset.
            cols: Indices of keys; a normaliser needs all of them.
            heads: Indices of query heads, or None for all of them.

        Returns:
            (batch, heads, rows, cols) in the dtype sums are kept in.
        """
        q, k, bias = self.q[:, :, rows], self.k[:, :, cols], self.bias
        if heads is not None:
            q, k = q[:, heads], k[:, heads // self.group]
            bias = _pick(bias, heads) if isinstance(bias, Tensor) or bias is None else bias.pick(heads)
        raw = cap(products(q.to(self.wide), k.to(self.wide), self.scale), self.softcap)
        added, allowed = self._bias_rows(bias, rows, cols), self.allowed(rows, cols)
        allowed = allowed if heads is None else _pick(allowed, heads)
        return hide(raw if added is None else raw + added, allowed)

    def _sees_all(self, pattern: Pattern, q_pos: Tensor) -> bool:
        if q_pos.numel() == 0 or self.kv_len == 0:
            return True
        if self.places is not None:
            return False
        first = int(q_pos[0])
        step = int(q_pos[1]) - first if q_pos.numel() > 1 else 1
        return step == 1 and bool(
            (pattern.tile(range(first, first + q_pos.numel()), range(self.kv_len)) == Tile.FULL).all()
        )

    def _bias_rows(self, bias: Tensor | PositionBias | None, rows: Index, cols: Index) -> Tensor | None:
        if bias is None:
            return None
        if isinstance(bias, Tensor):
            return _cut(bias, (self.q_len, self.kv_len), rows, cols).to(self.wide)
        # Widened before it is multiplied by distances, which a short dtype cannot even count.
        wide = bias.with_weight(bias.weight.to(self.wide))
        return wide.scores(self.q_positions()[rows], self.k_positions()[cols])

    def __str__(self) -> str:
        parts = [f"q {tuple(self.q.shape)}, k {tuple(self.k.shape)}, v {tuple(self.v.shape)}"]
        parts.append(f"{str(self.q.dtype).removeprefix('torch.')} on {self.q.device}")
        for name, value in (("mask", self.mask), ("bias", self.bias)):
            if value is not None:
                parts.append(
                    f"{name} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{name} {value}"
                )
        if self.softcap is not None:
            parts.append(f"softcap {self.softcap:g}")
        if not (isinstance(self.normaliser, Softmax) and self.normaliser.plain):
            parts.append(str(self.normaliser))
        if self.dropout > 0:
            parts.append(f"dropout {self.dropout:g}")
        if self.q_offset:
            parts.append(f"q_offset {self.q_offset}")
        return ", ".join(parts)


def blank(problem: Problem) -> Float[Tensor, "batch heads q_len v_head_dim"]:
    """An output to be filled, laid out so that joining the heads of a token needs no copy."""
    batch, heads, q_len = problem.q.shape[:3]
    return problem.q.new_empty(batch, q_len, heads, problem.v_head_dim).transpose(1, 2)


def products(q: Float[Tensor, "b h r d"], k: Float[Tensor, "b g c d"], scale: float) -> Float[Tensor, "b h r c"]:
    """`scale * q @ k.T` with grouped keys, by folding the queries of a group into rows instead of copying keys."""
    group = q.shape[1] // max(k.shape[1], 1)
    folded = (q * scale).reshape(k.shape[0], k.shape[1], group * q.shape[2], q.shape[3])
    return (folded @ k.transpose(-1, -2)).view(*q.shape[:3], k.shape[2])


def cap(scores: Float[Tensor, "*shape"], softcap: float | None) -> Float[Tensor, "*shape"]:
    """`softcap * tanh(scores / softcap)`, or the scores where there is no softcap."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def hide(scores: Float[Tensor, "b h r c"], allowed: Bool[Tensor, "_ _ r c"] | None) -> Float[Tensor, "b h r c"]:
    """The scores with -inf where a key is not allowed."""
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def make_problem(  # noqa: PLR0913 - the fields of one call, as in the public function
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Pattern | Tensor | None = None,
    bias: Tensor | PositionBias | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    normaliser: Normaliser | None = None,
    dropout: float = 0.0,
    q_offset: int | None = None,
) -> Problem:
    """Checks the arguments of an attention call.

    Args:
        q: Queries (batch, heads, q_len, head_dim).
        k: Keys (batch, kv_heads, kv_len, head_dim), kv_heads a divisor of heads.
        v: Values (batch, kv_heads, kv_len, v_head_dim).
        mask: A pattern, or a boolean tensor, True = attend: (q_len, kv_len) or (batch, heads, q_len, kv_len), where
            any size may be 1.
        bias: Added to the scores: a tensor of the same shapes, `ALiBi`, `RelativeTable` or `AdaptiveSpan`; None adds 0.
        scale: Factor of the products; None is head_dim ** -0.5. A tensor is multiplied onto q, so that gradients
            flow to it: one number, one for each head (heads,), or (batch | 1, heads | 1, q_len | 1, 1).
        softcap: c in c * tanh(scaled / c); None is no cap.
        normaliser: None is `Softmax()`.
        dropout: Share of the weights that is dropped.
        q_offset: Position of the first query, the first key having position 0. Must be given where q_len differs from
            kv_len and the mask or the bias depends on positions.

    Returns:
        The problem, with 2-D masks and biases as 4-D views, a scale that is a tensor in q, and all defaults filled in.

    Raises:
        MultiheadError: If anything does not fit; the message says what, with the numbers, and what to do.

    Example:
        >>> problem = make_problem(torch.randn(2, 8, 5, 16), torch.randn(2, 4, 5, 16), torch.randn(2, 4, 5, 24))
        >>> problem.group, problem.scale
        (2, 0.25)
    """
    check.check_tensors(q, k, v)
    if isinstance(scale, Tensor):
        q, scale = check.scaled(q, scale), 1.0
    mask = _checked_mask(mask, q, k)
    bias = _checked_bias(bias, q, k)
    return Problem(
        q=q,
        k=k,
        v=v,
        mask=mask,
        bias=bias,
        scale=check.check_scale(scale, q.shape[3]),
        softcap=check.check_softcap(softcap),
        normaliser=_checked_normaliser(normaliser, q),
        dropout=check.check_dropout(dropout),
        q_offset=_first_position(q_offset, q.shape[2], k.shape[2], mask, bias),
    )


def _first_position(
    q_offset: int | None,
    q_len: int,
    kv_len: int,
    mask: Pattern | Tensor | None,
    bias: Tensor | PositionBias | None,
) -> int | None:
    """The position of the first query; None where nothing depends on it and nothing gives it."""
    if q_offset is not None:
        return check.check_offset(q_offset)
    if q_len == kv_len:
        return 0
    positional = [f"mask {mask}"] if isinstance(mask, Pattern) and mask.positional else []
    positional += [f"bias {bias}"] if isinstance(bias, PositionBias) else []
    if positional:
        raise check.unaligned(q_len, kv_len, positional)
    return None


def _checked_mask(mask: Pattern | Tensor | None, q: Tensor, k: Tensor) -> Pattern | Tensor | None:
    if isinstance(mask, Tensor):
        return check.check_mask(mask, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]), q.device)
    if mask is not None:
        check_kinds({"mask": mask}, (Pattern,), "a pattern or a boolean tensor")
        check.check_counts("pattern", mask, (mask.batch, mask.heads), q.shape)
    return mask


def _checked_bias(bias: Tensor | PositionBias | None, q: Tensor, k: Tensor) -> Tensor | PositionBias | None:
    if isinstance(bias, Tensor):
        return check.check_bias(bias, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]), q.device)
    if bias is not None:
        check_kinds({"bias": bias}, get_args(PositionBias), "a tensor, ALiBi, RelativeTable or AdaptiveSpan")
        check.check_heads("bias", bias, bias.weight, q)
    return bias


def _checked_normaliser(normaliser: Normaliser | None, q: Tensor) -> Normaliser:
    if normaliser is None:
        return _SOFTMAX
    check_kinds({"normaliser": normaliser}, (Softmax, Sigmoid, Entmax), "one of Softmax(), Sigmoid(), Entmax()")
    if isinstance(normaliser, Softmax) and normaliser.sinks is not None:
        check.check_heads("tensor of sinks", None, normaliser.sinks, q)
    return normaliser


def _cut(given: Tensor, sizes: tuple[int, int], rows: Index, cols: Index) -> Tensor:
    """Rows and columns of a tensor whose last two sizes may be 1, as a view where the indices are slices."""
    full = given.expand(*given.shape[:2], *sizes)
    return full[:, :, rows][..., cols]


def _pick(given: Tensor | None, heads: Tensor) -> Tensor | None:
    """Heads of a tensor that may hold one for all."""
    return given if given is None or given.shape[1] == 1 else given[:, heads]
