"""One call of a module, checked: what is attended to, where it stands, and what holds for each group of heads."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from multihead.attend.check import check_mask, check_offset
from multihead.error import MultiheadError, check_kinds
from multihead.layer.cache import AttentionCache
from multihead.layer.group import HeadGroup
from multihead.layer.projection import FusedProjection
from multihead.layer.scan_cache import StateGroup
from multihead.pattern import Pattern
from multihead.position import PositionBias

Bias = Tensor | PositionBias

_FIRST = ("qkv_proj", "q_proj", "qk_proj", "q_down", "k_proj")


@runtime_checkable
class Widths(Protocol):
    """What is asked of a module here."""

    @property
    def groups(self) -> Sequence[HeadGroup]:
        """Its groups, settled."""
        ...

    def widths(self) -> Mapping[str, int]:
        """Input widths of query, key and value."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A group of heads within a call.

    Args:
        place: Its number.
        groups: All of them.
        kv_len: How many keys it gets.
        first: Position of the first of them.
    """

    place: int
    groups: Sequence[HeadGroup]
    kv_len: int
    first: int

    @property
    def group(self) -> HeadGroup:
        """The group."""
        return self.groups[self.place]

    @property
    def heads(self) -> slice:
        """Its heads among those of the module."""
        start = sum(group.heads for group in self.groups[: self.place])
        return slice(start, start + self.group.heads)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """The arguments of `forward`, with their defaults.

    Args:
        query: (batch, q_len, width).
        key: (batch, kv_len, width of keys), or None where the cache has the keys.
        value: Likewise.
        mask: As given.
        bias: As given.
        q_offset: As given, or None where a cache knows it.
        cache: As given.
        start: Tokens in the cache before the call.
    """

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    mask: Pattern | Tensor | None
    bias: Bias | None
    q_offset: int | None
    cache: AttentionCache | None
    start: int

    @classmethod
    def checked(
        cls,
        module: Widths,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        *,
        mask: Pattern | Tensor | None,
        bias: Bias | None,
        q_offset: int | None,
        cache: AttentionCache | None,
    ) -> "Call":
        """The call, refused where its parts do not belong together; nothing is computed."""
        check_arguments({"query": query}, {"key": key, "value": value}, mask)
        check_kinds({"cache": cache}, (AttentionCache, NoneType), "attn.cache(batch=...), or None")
        if q_offset is not None:
            check_offset(q_offset)
        fixed = cache is not None and cache.fixed
        if key is None and value is not None:
            raise MultiheadError(
                asked="keys for the values",
                arrived=f"key=None with value {tuple(value.shape)}",
                remedy="pass the keys as well",
            )
        if fixed and key is not None:
            raise MultiheadError(
                asked="queries for the sequence a cache remembers",
                arrived=f"a cache of {cache.length if cache else 0} keys and key {tuple(key.shape)} besides",
                remedy="leave key and value out, or the cache",
            )
        if not fixed:
            key = query if key is None else key
            value = key if value is None else value
        given = {"query": query, "key": key, "value": value}
        check_inputs(module, {name: tensor for name, tensor in given.items() if tensor is not None})
        if cache is not None:
            _check_cache(module, cache, query, key, q_offset)
        start = 0 if cache is None or fixed else cache.length
        call = cls(query=query, key=key, value=value, mask=mask, bias=bias, q_offset=q_offset, cache=cache, start=start)
        if cache is not None and call.grows:
            cache.check_filled_by(module)
            call.check_windows(module.groups)
        return call

    @property
    def grows(self) -> bool:
        """Whether the call adds its keys to earlier ones."""
        return self.cache is not None and not self.cache.fixed

    def check_windows(self, groups: Sequence[HeadGroup]) -> None:
        """Refuses a mask under which queries would look at tokens that a sliding cache keeps no longer."""
        assert self.cache is not None
        if not self.query.shape[1]:
            return
        for group, held in zip(groups, self.cache.groups, strict=True):
            gone = held.rows.gone(self.query.shape[1])
            if not gone:
                continue
            behind = [mask.reach[0] for mask in (group.mask, self.mask) if isinstance(mask, Pattern)]
            left = min((bound for bound in behind if bound is not None), default=None)
            if left is not None and self.start - left >= gone:
                continue
            if isinstance(self.mask, Tensor) and not _looks_at(self.mask, gone):
                continue
            told = "without limit" if left is None else f"by {left} tokens"
            raise MultiheadError(
                asked="a cache that keeps what the queries may look at",
                arrived=f"{held.kind} with {'no mask' if self.mask is None else 'a mask'} that looks back {told}: for "
                f"queries from position {self.start} the first {gone} tokens are not kept any more",
                remedy="attend within what is kept, mask & sliding_window(window), or keep more: "
                "attn.cache(batch=..., kind=" + ("Full())" if left is None else f"Sliding({left + 1}))"),
            )

    def offset(self, first: int) -> int | None:
        """Position of the first query, where the first key a group gets, at `first`, has position 0."""
        return self.start - first if self.grows else self.q_offset

    def q_positions(self, positions: Tensor | None) -> Tensor:
        """Where the queries stand, for what turns them: (q_len,) or (batch, q_len)."""
        batch, q_len = self.query.shape[:2]
        check_kinds({"positions": positions}, (Tensor, NoneType), "a tensor of one position for each query, or None")
        if positions is None:
            return torch.arange(self.first, self.first + q_len, device=self.query.device)
        whole = not (positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool)
        if not whole or tuple(positions.shape) not in ((q_len,), (batch, q_len), (1, q_len)):
            raise MultiheadError(
                asked=f"positions: whole numbers (batch, q_len) = ({batch}, {q_len}) or ({q_len},)",
                arrived=f"shape {tuple(positions.shape)}, {positions.dtype}",
                remedy="pass one position for each query; for padding on the left (keep.cumsum(1) - 1).clamp(min=0)",
            )
        return positions

    @property
    def first(self) -> int:
        """Position of the first query, where no positions are given."""
        return self.start if self.grows else self.q_offset or 0

    @property
    def stand_alike(self) -> bool:
        """Whether new keys stand where the queries do: both are of one input."""
        return self.key is None or self.key is self.query or self.grows

    def kept(self, place: int, k: Tensor | None, v: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
        """Keys and values a group attends to, new ones put into the cache, and the position of the first of them."""
        held = None if self.cache is None else self.cache.groups[place]
        assert not isinstance(held, StateGroup)
        if k is not None and v is not None:
            return (k, v, 0) if held is None else held.append(k, v)
        assert held is not None
        return held.held(dtype)

    def seen(self, kv_len: int, positions: Tensor | None) -> int | Tensor:
        """How many positions the text has so far, for what turns by that; of each sequence where they differ."""
        if positions is not None:
            if self.grows:
                raise MultiheadError(
                    asked="a rotary whose angles depend on the length of the text, with a cache",
                    arrived="positions= of these tokens; those of earlier ones are not known any more",
                    remedy="leave positions out, attend without a cache, or take a rotary with fixed angles",
                )
            return positions.amax(-1) + 1 if positions.numel() else 1
        return max(kv_len, self.first + self.query.shape[1], 1)

    def late_positions(self, first: int, kv_len: int, q_positions: Tensor) -> Tensor:
        """Where the keys stand that are turned after they came out of a cache, or were not put into one."""
        if self.cache is None and (self.key is None or self.key is self.query):
            return q_positions
        return torch.arange(first, first + kv_len, device=self.query.device)

    def mask_of(self, where: Where) -> Pattern | Tensor | None:
        """What a group's heads may see: its own pattern and the call's mask, on the keys it gets."""
        own, given = moved(where.group.pattern, where.first), self.mask
        if isinstance(given, Tensor):
            given = self._cut("mask", given, where)
        elif given is not None:
            _check_alike("mask", given, given.heads, where)
            given = moved(given, where.first)
        if own is None or given is None:
            return given if own is None else own
        if isinstance(given, Pattern):
            return own & given
        shape = (self.query.shape[0], where.group.heads, self.query.shape[1], where.kv_len)
        given, offset = check_mask(given, shape, self.query.device), self.offset(where.first)
        return given & own.mask(self.query.shape[1], where.kv_len, q_offset=offset or 0, device=given.device)

    def bias_of(self, where: Where, own: PositionBias | None) -> Bias | None:
        """What is added to a group's scores: its position bias and the call's bias."""
        given = self.bias
        if isinstance(given, Tensor):
            given = self._cut("bias", given, where)
        elif given is not None and len(where.groups) > 1:
            given = given.pick(torch.arange(where.heads.start, where.heads.stop, device=given.weight.device))
        if own is None or given is None:
            return given if own is None else own
        return _added(own, self, where) + (given if isinstance(given, Tensor) else _added(given, self, where))

    def _cut(self, name: str, given: Tensor, where: Where) -> Tensor:
        """A mask or bias (..., kv_len) for some heads and the keys that are kept."""
        if where.first and given.ndim and given.shape[-1] != 1:
            everything = where.first + where.kv_len
            if given.shape[-1] != everything:
                raise MultiheadError(
                    asked=f"a {name} over all {everything} tokens so far, or 1",
                    arrived=f"{name} of shape {tuple(given.shape)}; the cache keeps the last {where.kv_len}",
                    remedy=f"pass it for all tokens, as without a sliding cache: its last size is {everything}",
                )
            given = given[..., where.first :]
        if len(where.groups) == 1 or given.ndim != 4 or given.shape[1] == 1:
            return given
        _check_alike(name, given.shape, given.shape[1], where)
        return given[:, where.heads]


def moved(pattern: Pattern | None, first: int) -> Pattern | None:
    """A pattern for keys and queries that are counted from `first`."""
    return pattern if pattern is None or first == 0 else pattern.at(q_offset=first, k_offset=first)


def check_arguments(needed: Mapping[str, object], optional: Mapping[str, object], mask: object) -> None:
    """Refuses inputs that are no tensors, and a mask that is none."""
    check_kinds(needed, (Tensor,), "a tensor (batch, length, width)")
    check_kinds(optional, (Tensor, NoneType), "a tensor (batch, length, width), or None")
    check_mask_kind(mask)


def check_mask_kind(mask: object) -> None:
    """Refuses what is no mask."""
    check_kinds({"mask": mask}, (Pattern, Tensor, NoneType), "a pattern, a boolean tensor, or None")


def check_inputs(module: Widths, given: Mapping[str, Tensor]) -> None:
    """Refuses inputs of another kind, width, batch, length, dtype or device than belong together."""
    check_kinds(given, (Tensor,), "a tensor (batch, length, width)")
    widths = module.widths()
    for name, tensor in given.items():
        if tensor.ndim != 3 or tensor.shape[2] != widths[name]:
            raise MultiheadError(
                asked=f"{name} (batch, length, {widths[name]})",
                arrived=_told(given),
                remedy="pass inputs of this shape, batch first: `x[None]` for one sequence; the widths are set by "
                "embed_dim and kv_embed_dim",
            )
    check_alike_weights(module, given)
    first, *others = given.values()
    key, value = given.get("key"), given.get("value")
    if all(tensor is first for tensor in others):
        return
    # Compared, not put into sets: in a graph sizes may be symbols, which that would fix.
    batches = all(tensor.shape[0] == first.shape[0] for tensor in others)
    if not batches or (key is not None and value is not None and key.shape[1] != value.shape[1]):
        raise MultiheadError(
            asked="one batch size for query, key and value, and one length for key and value",
            arrived=_told(given),
            remedy="pass inputs as (batch, length, width): `x.transpose(0, 1)` where the length comes first",
        )


def check_alike_weights(module: nn.Module | Widths, given: Mapping[str, Tensor]) -> None:
    """Refuses inputs in another dtype or on another device than the weights, where no autocast and no hook mends it."""
    first = next((found for name in _FIRST if (found := getattr(module, name, None)) is not None), None)
    # Other kinds of linear maps, such as those of a quantised model, know themselves what they take.
    if first is None or type(first) not in (nn.Linear, FusedProjection):
        return
    weight = first.weight
    if all(tensor.dtype == weight.dtype and tensor.device == weight.device for tensor in given.values()):
        return
    if first._forward_pre_hooks or "forward" in vars(first):  # pyright: ignore[reportPrivateUsage]
        return
    for name, tensor in given.items():
        if tensor.device == weight.device and (tensor.dtype == weight.dtype or _casts(tensor)):
            continue
        raise MultiheadError(
            asked=f"inputs in the dtype and on the device of the weights, {weight.dtype} on {weight.device}",
            arrived=f"{name} of {tensor.dtype} on {tensor.device}",
            remedy=f"pass `{name}.to(weight)`, move the module, or call it under torch.autocast",
        )


def check_visible(mask: Pattern | Tensor | None) -> None:
    """Warns of a mask under which most queries see nothing: it may be the wrong way round."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.device.type != "cpu" or not mask.numel():
        return
    if torch.compiler.is_compiling():
        return
    blind = ~mask.any(-1)
    if 2 * int(blind.sum()) > blind.numel():
        warnings.warn(
            f"{int(blind.sum())} of {blind.numel()} rows of a mask of shape {tuple(mask.shape)} allow no key at all: "
            "their heads give 0. True = attend here; if True stood for masked out, pass `~mask`",
            UserWarning,
            stacklevel=3,
        )


def _casts(tensor: Tensor) -> bool:
    kind = tensor.device.type
    open_to = tensor.is_floating_point() and tensor.dtype != torch.float64 and torch.amp.is_autocast_available(kind)
    return open_to and torch.is_autocast_enabled(kind)


def _looks_at(mask: Tensor, gone: int) -> bool:
    """Whether a boolean mask allows one of the first keys, or all alike."""
    if mask.dtype != torch.bool or not mask.ndim or mask.is_meta or torch.compiler.is_compiling():
        return False  # refused elsewhere, or its numbers are not known
    return bool((mask if mask.shape[-1] == 1 else mask[..., :gone]).any())


def _told(given: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given.items())


def _check_cache(
    module: Widths, cache: AttentionCache, query: Tensor, key: Tensor | None, q_offset: int | None
) -> None:
    cache.check(module.groups, query.shape[0], 0 if key is None else key.shape[1])
    if cache.fixed:
        return
    if q_offset is not None:
        raise MultiheadError(
            asked="queries that follow the tokens of the cache",
            arrived=f"q_offset={q_offset} with a cache of {cache.length} tokens",
            remedy="leave q_offset out; cache.cut(length) goes back",
        )
    if key is not None and key.shape[1] != query.shape[1]:
        raise MultiheadError(
            asked="as many new keys as queries, for a cache of self-attention",
            arrived=f"query {tuple(query.shape)}, key {tuple(key.shape)}",
            remedy="for cross-attention let the module remember the other sequence: cache = attn.remember(key)",
        )


def _check_alike(name: str, told: object, heads: int | None, where: Where) -> None:
    """Refuses a mask for each head that cannot be dealt out to several groups."""
    every = sum(group.heads for group in where.groups)
    if heads not in (None, 1) and len(where.groups) > 1 and (isinstance(told, Pattern) or heads != every):
        raise MultiheadError(
            asked=f"a {name} for all {every} heads alike, or a tensor with one for each head",
            arrived=f"{name} {told} for {heads} heads, of a module of {len(where.groups)} groups",
            remedy="give each group its own: HeadGroup(..., mask=...), or pass a tensor (batch, heads, q_len, kv_len)",
        )


def _added(bias: PositionBias, call: Call, where: Where) -> Tensor:
    """A position bias as numbers."""
    first = call.offset(where.first) or 0
    q_pos = torch.arange(first, first + call.query.shape[1], device=call.query.device)
    return bias.scores(q_pos, torch.arange(where.kv_len, device=call.query.device))
