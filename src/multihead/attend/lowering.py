"""What a call's mask and bias are to the compiled kernel: parts in closed form, and a map of tiles for the rest.

A pattern is what all its parts allow. Windows become bounds of the distance; documents, chunks and equal steps ids that
must be equal; keys that are shut to every query one list; what is none of these is lowered to a map of tiles, once for
all calls alike.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import torch
from jaxtyping import Bool, Float, Int, Int8, Int32, Int64
from torch import Tensor

from multihead.attend.normaliser import Softmax
from multihead.attend.problem import Problem
from multihead.attend.selected import Tiles, both, tiles_of
from multihead.pattern import Pattern, band, every, lower
from multihead.pattern.algebra import NOTHING, And, Shifted
from multihead.pattern.blocked import Blocked, block_of
from multihead.pattern.chosen import Chosen
from multihead.pattern.heads import PerHead
from multihead.pattern.law import Bounds
from multihead.pattern.relative import Relative
from multihead.pattern.spaced import Spaced
from multihead.pattern.tokens import Match
from multihead.position import AdaptiveSpan, ALiBi, RelativeTable

TILE = 64  # queries and keys of a tile, as the kernel counts them
_OPEN = (-(2**63), 2**63 - 1)  # no bound on either side
_SHUT = (2**62, 2**62)  # a distance no pair has
_KEPT, _BYTES = 64, 2**26  # lowered patterns that are remembered, and the memory of all of them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskParts:
    """Which pairs take part: those that every part that is there allows. None writes to these tensors.

    Args:
        window: Least and greatest query position - key position.
        q_ids: Ids of the queries, where those of the keys must be equal.
        k_ids: Ids of the keys.
        keep: Keys that may be seen.
        dense: Pairs that may be seen.
        tile_class: For each tile of 64 x 64, counted from the first query and key: 0 nothing, 1 look into it, 2 all.
        tile_index: For class 1 its place among the bits.
        tile_bits: Distinct tiles: pair (r, c) is bit c of word r.
        asked: Functions that were asked about every pair to make the tiles.
    """

    window: Int64[Tensor, "1 _ 2"] | None = None
    q_ids: Int32[Tensor, "_ q_len"] | None = None
    k_ids: Int32[Tensor, "_ kv_len"] | None = None
    keep: Bool[Tensor, "_ kv_len"] | None = None
    dense: Bool[Tensor, "_ _ _ _"] | None = None
    tile_class: Int8[Tensor, "_ _ q_tiles k_tiles"] | None = None
    tile_index: Int32[Tensor, "_ _ q_tiles k_tiles"] | None = None
    tile_bits: Int64[Tensor, "distinct rows"] | None = None
    asked: tuple[str, ...] = ()

    def tensors(self) -> list[Tensor | None]:
        """The parts in the order in which the kernel takes them."""
        ids, tiles = [self.q_ids, self.k_ids], [self.tile_class, self.tile_index, self.tile_bits]
        return [self.window, *ids, self.keep, self.dense, *tiles]

    def __str__(self) -> str:
        names = {"window": "bounds of distance", "q_ids": "ids", "keep": "list of keys"}
        closed = [name for part, name in names.items() if getattr(self, part) is not None]
        words = [f"mask in closed form ({', '.join(closed)})"] * bool(closed)
        words += ["boolean mask as it is"] * (self.dense is not None)
        if self.tile_class is not None and self.tile_bits is not None:
            size = sum(part.nbytes for part in (self.tile_class, self.tile_bits)) + 4 * self.tile_class.numel()
            words.append(f"tile map of {size / 1024:,.1f} KiB, {self.tile_bits.shape[0]} bit tiles")
            most = (self.tile_class.numel() * TILE * TILE // 8 + 5 * self.tile_class.numel()) / 1024
            names = " and ".join(f"#{name}" for name in self.asked)
            words += [f"{names} asked pair by pair, once (a bit each: up to {most:,.1f} KiB)"] * bool(names)
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BiasParts:
    """What is added to the scores: the sum of the parts that are there. None writes to these tensors.

    Args:
        slopes: `-slopes[head] * |query position - key position|`.
        table: `table[head, clamp(query position - key position - first, 0, length - 1)]`.
        dense: Any numbers, in float32, bfloat16 or float16.
        first: Distance of the first column of the table.
    """

    slopes: Float[Tensor, " heads"] | None = None
    table: Float[Tensor, "heads length"] | None = None
    dense: Float[Tensor, "_ _ _ _"] | None = None
    first: int = 0

    def tensors(self) -> list[Tensor | None]:
        """The parts in the order in which the kernel takes them."""
        return [self.slopes, self.table, self.dense]

    def __str__(self) -> str:
        words = ["slopes of distance"] * (self.slopes is not None)
        words += [] if self.table is None else [f"table of {self.table.shape[1]} distances"]
        return ", ".join(words + ["bias as it is"] * (self.dense is not None))


def mask_parts(problem: Problem) -> MaskParts:
    """The mask of a problem in parts; what lies beyond adaptive spans is shut like what is masked.

    Raises:
        MultiheadError: Positions lie outside the ids the pattern holds, or a span is not finite.
    """
    parts = _parts_of_mask(problem)
    return (
        replace(parts, window=_within(parts.window, problem.bias)) if isinstance(problem.bias, AdaptiveSpan) else parts
    )


def _within(window: Tensor | None, span: AdaptiveSpan) -> Int64[Tensor, "1 heads 2"]:
    """Bounds of distance (1, heads, 2) that hold as well beyond which a span gives no weight."""
    span.reach()  # refuses what is not finite
    last = (span.spans.detach().double() + span.ramp).ceil().to(device="cpu", dtype=torch.int64) - 1
    bounds = torch.stack([-last, last], -1)[None]
    if window is not None:
        bounds = torch.stack(
            [torch.maximum(bounds[..., 0], window[..., 0]), torch.minimum(bounds[..., 1], window[..., 1])], -1
        )
    shut = torch.tensor(_SHUT, device="cpu")
    return torch.where(bounds[..., :1] <= bounds[..., 1:], bounds, shut).contiguous()


def _parts_of_mask(problem: Problem) -> MaskParts:
    if problem.mask is None:
        return MaskParts()
    if isinstance(problem.mask, Tensor):
        return _of_tensor(problem.mask, problem.kv_len)
    if isinstance(problem.mask, Relative) and not _watched():
        return _of_window(problem.mask.low, problem.mask.high)
    pieces = _pieces(problem.mask)
    chosen = [piece for piece in pieces if isinstance(piece, Chosen)]
    if chosen:
        others = [piece for piece in pieces if not isinstance(piece, Chosen)]
        rest = _parts_of_mask(replace(problem, mask=reduce(_and, others) if others else None))
        return _with_chosen(rest, chosen, problem)
    bounds = [_bounds(piece) for piece in pieces]
    windows = tuple(bound for bound in bounds if bound is not None)
    key = (problem.mask, problem.q_len, problem.kv_len, problem.q_offset or 0)
    if _watched():
        return _lowered(*key)
    return MaskParts(window=_window(windows)) if len(windows) == len(bounds) else _remembered(key)


def _with_chosen(rest: MaskParts, chosen: list[Chosen], problem: Problem) -> MaskParts:
    """What was chosen for this very call, among what all other parts allow: nothing of it is worth remembering."""
    maps = [tiles_of(some, problem.q_len, problem.kv_len, problem.q_offset or 0) for some in chosen]
    if rest.tile_class is not None and rest.tile_index is not None and rest.tile_bits is not None:
        maps.append(Tiles(rest.tile_class, rest.tile_index, rest.tile_bits))
    made = reduce(both, maps)
    return replace(rest, tile_class=made.classes, tile_index=made.index, tile_bits=made.bits)


def bias_parts(problem: Problem) -> BiasParts:
    """The bias of a problem in parts, without gradients."""
    bias = problem.bias
    if bias is None:
        return BiasParts()
    if isinstance(bias, Tensor):
        dense = bias.detach().resolve_neg()  # the kernel reads memory, not what torch makes of it
        return BiasParts(dense=dense.float() if dense.dtype == torch.float64 else dense)
    if isinstance(bias, ALiBi):
        return BiasParts(slopes=_plain(bias.slopes))
    first = problem.q_offset or 0
    ends = first - problem.kv_len + 1, first + problem.q_len - 1
    if isinstance(bias, AdaptiveSpan):
        # From its reach on everything is shut, whatever the distance.
        low, high = (min(max(end, -bias.reach()), bias.reach()) for end in ends)
        # Only the logarithms are rounded: of a rounded span little is right where little of it is left.
        wide = bias.with_weight(bias.spans.detach().double())
        distances = torch.arange(low, max(low, high) + 1, device=wide.spans.device)
        return BiasParts(table=_plain(wide.scores(distances, distances.new_zeros(1))[0, :, :, 0]), first=low)
    low, high = _distances(bias, *ends)
    form = (bias.buckets, bias.bidirectional, bias.max_distance, low, high)
    buckets = _buckets.__wrapped__(*form) if _watched() else _buckets(*form)
    return BiasParts(table=_plain(bias.table.T[:, buckets]), first=low)


def sink_logits(problem: Problem) -> Float[Tensor, " heads"] | None:
    """One logit a head that takes up weight and gives nothing, in float32, or None."""
    normaliser = problem.normaliser
    if not isinstance(normaliser, Softmax) or normaliser.plain:
        return None
    logit = normaliser.sink_logit(torch.empty(0, dtype=torch.float32, device="cpu"))
    return None if logit is None else _plain(logit.flatten().expand(problem.heads))


def _watched() -> bool:
    """Whether tensors that are made now may be no tensors: what is remembered would outlive the pretence."""
    return torch._C._len_torch_dispatch_stack() > 0  # pyright: ignore[reportPrivateUsage] - it has no public name


def _plain(numbers: Tensor) -> Tensor:
    return numbers.detach().resolve_neg().to(torch.float32).contiguous()


def _of_tensor(mask: Tensor, kv_len: int) -> MaskParts:
    """A boolean tensor as it is, or as a list of keys where it asks nothing of head and query."""
    if mask.shape[1] == mask.shape[2] == 1:
        return MaskParts(keep=mask[:, 0, 0].expand(-1, kv_len).contiguous())
    return MaskParts(dense=mask)


@lru_cache(maxsize=256)
def _of_window(low: int, high: int | None) -> MaskParts:
    """One window for all heads: the usual case, which is met in every layer."""
    return MaskParts(window=_window((((high, -low),),)))


def _pieces(pattern: Pattern) -> tuple[Pattern, ...]:
    parts = pattern.parts if isinstance(pattern, And) else (pattern,)
    return tuple(piece for part in parts for piece in _split(part))


def _split(part: Pattern) -> tuple[Pattern, ...]:
    """A dilated window as a window and equal steps, which have closed forms each; any other part as it is."""
    spaced, shift = (part.part, part.queries) if isinstance(part, Shifted) else (part, 0)
    if not isinstance(spaced, Spaced) or spaced.low is None or spaced.high is None or spaced.window is not None:
        return (part,)
    return (band(spaced.high, -spaced.low).at(q_offset=shift), every(spaced.step).at(q_offset=shift))


def _bounds(piece: Pattern) -> tuple[Bounds, ...] | None:
    """(left, right) of each head, or one for all, of a pattern of windows; None where it is none."""
    if piece.window is not None:
        return (piece.window,)
    if piece == NOTHING:
        return ((-1, 0),)
    if isinstance(piece, PerHead):
        heads = [_bounds(part) for part in piece.parts]
        known = [head[0] for head in heads if head is not None]
        return tuple(known) if len(known) == len(heads) else None
    return None


@lru_cache(maxsize=256)
def _window(windows: tuple[tuple[Bounds, ...], ...]) -> Int64[Tensor, "1 _ 2"] | None:
    """What is inside all windows: least and greatest distance, of each head or for all of them."""
    heads = max((len(bounds) for bounds in windows), default=0)
    # A window that is the same for all heads stands for each of them.
    each = [[_low_high(bounds[min(head, len(bounds) - 1)]) for bounds in windows] for head in range(heads)]
    both = [(max(low for low, _ in head), min(high for _, high in head)) for head in each]
    both = [(low, high) if low <= high else _SHUT for low, high in both]
    return None if all(bounds == _OPEN for bounds in both) else torch.tensor([both], device="cpu")


def _low_high(bounds: Bounds) -> tuple[int, int]:
    left, right = bounds
    return (_OPEN[0] if right is None else -right, _OPEN[1] if left is None else left)


# Patterns never change: what one was lowered to holds for every call of its sizes, in every layer of a model.
_Key = tuple[Pattern, int, int, int]
_LOCK = threading.Lock()
_MEMORY: OrderedDict[_Key, MaskParts] = OrderedDict()


def _remembered(key: _Key) -> MaskParts:
    with _LOCK:
        found = _MEMORY.get(key)
        if found is not None:
            _MEMORY.move_to_end(key)
            return found
    with torch.device("cpu"):  # whatever the default is
        made = _lowered(*key)
    with _LOCK:
        if _nbytes(made) <= _BYTES:
            _MEMORY[key] = made
        while len(_MEMORY) > _KEPT or sum(map(_nbytes, _MEMORY.values())) > _BYTES:
            _MEMORY.popitem(last=False)
    return made


def _nbytes(parts: MaskParts) -> int:
    return sum(part.nbytes for part in parts.tensors() if part is not None)


def _lowered(pattern: Pattern, q_len: int, kv_len: int, q_offset: int) -> MaskParts:
    """Windows, patterns of ids, those that only shut keys, and all others together as a map."""
    pieces = _pieces(pattern)
    bounds = {piece: found for piece in pieces if (found := _bounds(piece)) is not None}
    matches = [piece for piece in pieces if piece not in bounds and _has_ids(piece)]
    shut = [piece for piece in pieces if piece not in bounds and not piece.positional and piece.heads is None]
    rest = [piece for piece in pieces if piece not in bounds and piece not in matches and piece not in shut]
    if rest and all(len(found) == 1 for found in bounds.values()):
        # Tiles outside of the windows need not be looked into; those of heads would make a map for every head.
        rest, bounds = [*bounds, *rest], {}
    q_ids, k_ids = _joined([_ids(piece, q_len, kv_len, q_offset) for piece in matches]) if matches else (None, None)
    keep = reduce(torch.logical_and, [_shut(piece, kv_len) for piece in shut]) if shut else None
    tiles = lower(reduce(_and, rest), q_len, kv_len, block=TILE, q_offset=q_offset) if rest else None
    return MaskParts(
        window=_window.__wrapped__(tuple(bounds.values())),
        q_ids=q_ids,
        k_ids=k_ids,
        keep=keep,
        tile_class=None if tiles is None else tiles.classes,
        tile_index=None if tiles is None else tiles.index,
        # Eight bytes of a row are its word, lowest bit first, on the little-endian machines the kernel runs on.
        tile_bits=None if tiles is None else tiles.bits.view(torch.int64).flatten(1),
        asked=tuple(dict.fromkeys(name for piece in rest for name in piece.functions)),
    )


def _and(left: Pattern, right: Pattern) -> Pattern:
    return left & right


def _shut(piece: Pattern, kv_len: int) -> Bool[Tensor, "_ kv_len"]:
    """The keys a pattern without positions allows; it answers alike for any query."""
    return piece.allows(torch.zeros(1, dtype=torch.int64), torch.arange(kv_len))[:, 0, 0].contiguous()


def _has_ids(piece: Pattern) -> bool:
    """Whether it is ids that must be equal."""
    part = piece.part if isinstance(piece, Shifted) else piece
    if isinstance(part, Match):
        return part.step == 0 and not part.others
    return isinstance(part, Spaced) or (isinstance(part, Blocked) and part.before == part.after == 0)


def _ids(piece: Pattern, q_len: int, kv_len: int, q_offset: int) -> tuple[Tensor, Tensor]:
    """Ids of queries and keys at their absolute positions: of a piece that has ids."""
    part, shift, first = (piece.part, piece.queries, piece.keys) if isinstance(piece, Shifted) else (piece, 0, 0)
    start = q_offset + shift
    if isinstance(part, Match):
        if q_len:
            part.ids.check(start, start + q_len - 1, side="query")
        if kv_len:
            part.keys.check(first, first + kv_len - 1, side="key")
        return part.ids.rows()[:, start : start + q_len], part.keys.rows()[:, first : first + kv_len]
    q, k = torch.arange(start, start + q_len)[None], torch.arange(first, first + kv_len)[None]
    if isinstance(part, Spaced):
        return q % part.step, k % part.step
    if isinstance(part, Blocked):
        return block_of(q, part.size), block_of(k, part.size)
    raise AssertionError(f"{piece} holds no ids")


def _joined(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Ids of queries and keys that are equal where all of several are."""
    q_ids, k_ids = pairs[0]
    for queries, keys in pairs[1:]:
        q_ids, queries = torch.broadcast_tensors(q_ids, queries)
        k_ids, keys = torch.broadcast_tensors(k_ids, keys)
        # Numbered anew in the order of the first, of which neighbours are mostly alike.
        one, other = (_renumbered(*sides) for sides in ((q_ids, k_ids), (queries, keys)))
        most = max((int(ids.max()) + 1 for ids in other if ids.numel()), default=1)
        q_ids, k_ids = (first * most + second for first, second in zip(one, other, strict=True))
    return _short(q_ids, k_ids)


def _renumbered(q_ids: Tensor, k_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The ids as numbers from 0 in the same order."""
    both = torch.cat([q_ids.flatten(), k_ids.flatten()]).unique(return_inverse=True)[1]
    return both[: q_ids.numel()].view(q_ids.shape), both[q_ids.numel() :].view(k_ids.shape)


def _short(q_ids: Int[Tensor, "_ q_len"], k_ids: Int[Tensor, "_ kv_len"]) -> tuple[Tensor, Tensor]:
    """The ids as int32, numbered anew where they are too large for it."""
    limits = torch.iinfo(torch.int32)
    bounds = [bound for ids in (q_ids, k_ids) if ids.numel() for bound in ids.aminmax()]
    if bounds and (min(map(int, bounds)) < limits.min or max(map(int, bounds)) > limits.max):
        q_ids, k_ids = _renumbered(q_ids, k_ids)
    return q_ids.to(torch.int32), k_ids.to(torch.int32)


def _distances(bias: RelativeTable, low: int, high: int) -> tuple[int, int]:
    """The distances among low..high beyond which nothing changes any more."""
    least = -bias.max_distance if bias.bidirectional else 0
    low, high = (min(max(end, least), bias.max_distance) for end in (low, high))
    return low, max(low, high)


@lru_cache(maxsize=256)
def _buckets(buckets: int, bidirectional: bool, max_distance: int, low: int, high: int) -> Int[Tensor, " distances"]:  # noqa: FBT001
    """The bucket of each distance; a table of this form stands for all of them."""
    table = torch.empty(buckets, 0, device="cpu")
    like = RelativeTable(table, bidirectional=bidirectional, max_distance=max_distance)
    return like.bucket(torch.arange(low, high + 1, device="cpu"))
