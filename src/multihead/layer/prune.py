"""Take heads out of a module for good: its parameters shrink, and can be put back."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor, nn

from multihead.attend import Softmax
from multihead.error import MultiheadError
from multihead.layer.attention import MultiHeadAttention
from multihead.layer.group import HeadGroup, learned
from multihead.layer.linear_options import LinearScoring
from multihead.layer.part import GroupPart
from multihead.layer.projection import FusedProjection
from multihead.pattern import Pattern, per_head
from multihead.pattern.algebra import And, Join, Not
from multihead.pattern.heads import PerHead
from multihead.position import PositionBias

_KNOWN = frozenset({"q_proj", "k_proj", "v_proj", "qkv_proj", "out_proj", "parts"})
_SPLIT = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What is left of a group: numbers of heads and of key/value heads within it; none where it goes as a whole."""

    group: HeadGroup
    heads: list[int]
    kv_heads: list[int]

    @property
    def whole(self) -> bool:
        """Whether nothing is cut."""
        return len(self.heads) == self.group.heads


class Pruning:
    """Heads to be taken out of a module. Made, it has checked that they can be, and has changed nothing.

    The pruned module gives what the module gives with these heads gated to 0; the bias of the output projection stays.
    Rows of `q_proj`, `k_proj` and `v_proj`, columns of `out_proj`, norms per head, sinks, position biases and gates go
    with their head; a group that loses all heads goes as a whole.

    Heads that share a key/value head: it goes with the last of them. The key/value heads that stay have to keep equally
    many query heads, since query head h reads key/value head h // (heads / kv_heads); all else is refused.

    Args:
        module: The module.
        heads: Numbers of its heads.
        name: What messages call it.

    Raises:
        MultiheadError: There is no such head, or one is named twice; none would be left; key/value heads would keep
            unequal numbers; a norm is taken over all heads together; or the module has parts that are not known here.
    """

    def __init__(self, module: MultiHeadAttention, heads: Collection[int], *, name: str = "the module") -> None:
        self.module, self.heads, self.name = module, tuple(sorted(heads)), name
        self._check()
        self._kept = [self._left_of(group, first) for group, first in zip(module.groups, _firsts(module), strict=True)]
        self._before, self._after = module.groups, tuple[HeadGroup, ...]()
        self._undo: list[Callable[[], None]] = []
        self._fused = hasattr(module, "qkv_proj")

    def apply(self) -> None:
        """Cut. Parameters that lose something are new tensors: an optimiser has to be given them."""
        module, kept = self.module, self._kept
        self._cut_projections()
        parts = list(module.parts)
        for part, one in zip(parts, kept, strict=True):
            if one.heads and not one.whole:
                assert isinstance(part, GroupPart)
                self._cut_part(part, one)
        module.parts = nn.ModuleList(part for part, one in zip(parts, kept, strict=True) if one.heads)
        cut_at = module.out_proj.weight.dtype, module.out_proj.weight.device

        def back() -> None:
            for part, one in zip(parts, kept, strict=True):
                now = module.out_proj.weight
                if not one.heads and (now.dtype, now.device) != cut_at:
                    # The module was moved while this part lay aside.
                    part.to(now)
            module.parts = nn.ModuleList(parts).train(module.training)

        self._undo.append(back)
        self._after = tuple(part.group for part in module.parts if isinstance(part, GroupPart))
        _set_groups(module, self._after)

    def check_restorable(self) -> None:
        """Refuse to restore what is not pruned as this left it.

        Raises:
            MultiheadError: It was restored already, or pruned once more.
        """
        # Not by identity: torch.export puts a copy of the tuple there.
        if self.module.groups != self._after:
            raise MultiheadError(
                asked=f"the heads of {self.name} as they were before they were pruned",
                arrived="it was restored already" if not self._undo else "it was pruned once more since then",
                remedy="restore each pruning once, the last one first",
            )

    def restore(self) -> None:
        """Put everything back; what was kept has the values it has now. Parameters are new tensors again.

        Raises:
            MultiheadError: See `check_restorable`.
        """
        self.check_restorable()
        turned = hasattr(self.module, "qkv_proj") != self._fused
        self._turn(when=turned)
        for step in reversed(self._undo):
            step()
        self._undo.clear()
        _set_groups(self.module, self._before)
        self._turn(when=turned)

    def _turn(self, *, when: bool) -> None:
        """Fuse what is split, or the other way round."""
        if when:
            _ = self.module.unfuse() if hasattr(self.module, "qkv_proj") else self.module.fuse()

    def _check(self) -> None:
        module, heads = self.module, self.heads
        strange = sorted({name for name, _ in module.named_children()} - _KNOWN)
        linears = [linear for linear in (*(getattr(module, n, None) for n in _SPLIT), module.out_proj) if linear]
        strange += [type(linear).__name__ for linear in linears if type(linear) is not nn.Linear]
        if strange:
            raise MultiheadError(
                asked=f"to prune heads of {self.name}, made of plain linear projections",
                arrived=f"{type(module).__name__} with {', '.join(dict.fromkeys(strange))}",
                remedy="take away what was put in (adapters, quantisation), or gate the heads: mh.gated",
            )
        outside = [head for head in heads if not 0 <= head < module.heads]
        twice = [head for place, head in enumerate(heads) if head in heads[:place]]
        if outside or twice:
            raise MultiheadError(
                asked=f"heads 0 to {module.heads - 1} of {self.name}, each once",
                arrived=f"head {(outside or twice)[0]}{'' if outside else ' twice'}",
                remedy="heads are counted from 0, group after group",
            )
        if len(heads) == module.heads:
            raise MultiheadError(
                asked=f"to prune heads of {self.name}",
                arrived=f"all {module.heads} of them",
                remedy="leave one, or take the layer out of the model",
            )

    def _left_of(self, group: HeadGroup, first: int) -> _Kept:
        heads, kv_heads, _, _ = group.sizes
        shared = heads // kv_heads
        kept = [head for head in range(heads) if first + head not in self.heads]
        counts = [sum(head // shared == kv_head for head in kept) for kv_head in range(kv_heads)]
        if len({count for count in counts if count}) > 1:
            told = ", ".join(
                f"{first + kv * shared}-{first + (kv + 1) * shared - 1} keep {n}" for kv, n in enumerate(counts)
            )
            raise MultiheadError(
                asked=f"to prune heads of {self.name}, {shared} of which share each key/value head",
                arrived=f"of heads {told}: query heads are dealt out evenly, so the others would read other keys",
                remedy="prune as many heads of each key/value head, or all that share one; or gate them: mh.gated",
            )
        norm = group.scoring.norm
        if norm is not None and norm.over == "all" and 0 < len(kept) < heads:
            raise MultiheadError(
                asked=f"to prune heads of {self.name}",
                arrived='QKNorm(over="all"): the norm is taken over all heads together, so without some the others '
                "would score otherwise",
                remedy="gate them: mh.gated, or prune all heads of the group",
            )
        if group.pattern is not None and group.pattern.heads is not None:
            _pick_mask(group.pattern, kept or [0])
        return _Kept(group=group, heads=kept, kv_heads=[kv for kv, count in enumerate(counts) if count])

    def _cut_projections(self) -> None:
        module = self.module
        rows = [self._numbers(of_kv=kv, width=width) for kv, width in ((False, 2), (True, 2), (True, 3))]
        fused = getattr(module, "qkv_proj", None)
        if isinstance(fused, FusedProjection):
            before = fused.rows
            starts = [sum(before[:place]) for place in range(3)]
            joined = torch.cat([start + numbers for start, numbers in zip(starts, rows, strict=True)])
            self._cut_rows("qkv_proj", joined)
            self._set("qkv_proj", "rows", [len(numbers) for numbers in rows])
        else:
            for name, numbers in zip(_SPLIT, rows, strict=True):
                self._cut_linear(name, numbers)
        columns = self._numbers(of_kv=False, width=3)
        self._cut("out_proj", "weight", 1, columns)
        self._set("out_proj", "in_features", len(columns))

    def _numbers(self, *, of_kv: bool, width: int) -> Tensor:
        """Rows, or columns, of the heads that stay, in a projection that has `width` (an index of `sizes`) for each."""
        found: list[int] = []
        start = 0
        for one in self._kept:
            sizes = one.group.sizes
            size, count = sizes[width], sizes[1 if of_kv else 0]
            for head in one.kv_heads if of_kv else one.heads:
                found += range(start + head * size, start + (head + 1) * size)
            start += count * size
        return torch.tensor(found)

    def _cut_part(self, part: GroupPart, kept: _Kept) -> None:
        heads, kv_heads = torch.tensor(kept.heads), torch.tensor(kept.kv_heads)
        norm, gate, before = kept.group.scoring.norm, kept.group.gate, part.group
        if norm is not None and norm.over == "each" and norm.kind != "l2":
            for owner, numbers in ((part.q_norm, heads), (part.k_norm, kv_heads)):
                assert owner is not None
                self._cut(owner, "weight", 0, numbers)
        if part.sinks is not None:
            self._cut(part, "sinks", 0, heads)
        if part.gate is not None and gate is not None:
            size = 1 if gate.per == "head" else kept.group.sizes[3]
            self._cut_linear(part.gate, (heads[:, None] * size + torch.arange(size)).flatten())
        position = before.position
        if isinstance(position, PositionBias):
            position = self._cut_position(part, position, heads)
        part.group = _smaller(kept, position)
        if part.linear is not None and isinstance(part.group.scoring, LinearScoring):
            self._set(part.linear, "options", part.group.scoring)
        self._undo.append(lambda: setattr(part, "group", before))

    def _cut_position(self, part: GroupPart, position: PositionBias, heads: Tensor) -> PositionBias:
        """The bias of the heads that stay. What was learned is kept whole, since other modules may share it."""
        whole = part.bias
        assert isinstance(whole, Tensor)
        if learned(position) is None:
            self._cut(part, "bias", -1, heads)
            return position.with_weight(part.bias)  # pyright: ignore[reportArgumentType]
        assert isinstance(whole, nn.Parameter)
        part.bias = nn.Parameter(whole.detach().index_select(-1, heads.to(whole.device)), whole.requires_grad)

        def back() -> None:
            now = part.bias
            assert isinstance(now, Tensor)
            numbers = heads.to(whole.device)
            if not torch.equal(whole.index_select(-1, numbers), now.to(whole)):
                with torch.no_grad():
                    whole.index_copy_(-1, numbers, now.to(whole))
            part.bias = whole

        self._undo.append(back)
        return position.with_weight(part.bias)

    def _cut_linear(self, linear: nn.Module | str, rows: Tensor) -> None:
        self._cut_rows(linear, rows)
        self._set(linear, "out_features", len(rows))

    def _cut_rows(self, owner: nn.Module | str, rows: Tensor) -> None:
        for name in [name for name, _ in self._owner(owner).named_parameters(recurse=False)]:
            self._cut(owner, name, 0, rows)

    def _set(self, owner: nn.Module | str, name: str, value: object) -> None:
        before = getattr(self._owner(owner), name)
        setattr(self._owner(owner), name, value)
        self._undo.append(lambda: setattr(self._owner(owner), name, before))

    def _owner(self, owner: nn.Module | str) -> nn.Module:
        """A part of the module; projections go by name, since fusing makes new ones."""
        return self.module.get_submodule(owner) if isinstance(owner, str) else owner

    def _cut(self, owner: nn.Module | str, name: str, dim: int, kept: Tensor) -> None:
        """Cut a parameter or buffer, and keep what is cut off."""
        whole = getattr(self._owner(owner), name).detach()
        size = whole.shape[dim]
        stays = torch.zeros(size, dtype=torch.bool)
        stays[kept] = True
        kept, gone = (numbers.to(whole.device) for numbers in (kept, (~stays).nonzero()[:, 0]))
        cut_off = whole.index_select(dim, gone)
        _put(self._owner(owner), name, whole.index_select(dim, kept))

        def back() -> None:
            now = getattr(self._owner(owner), name).detach()
            shape = list(now.shape)
            shape[dim] = size
            made = now.new_empty(shape).index_copy_(dim, kept.to(now.device), now)
            _put(self._owner(owner), name, made.index_copy_(dim, gone.to(now.device), cut_off.to(now)))

        self._undo.append(back)


def _firsts(module: MultiHeadAttention) -> list[int]:
    return [sum(group.heads for group in module.groups[:place]) for place in range(len(module.groups))]


def _set_groups(module: MultiHeadAttention, groups: tuple[HeadGroup, ...]) -> None:
    sizes = [group.sizes for group in groups]
    module.groups = groups
    module.heads, module.kv_heads = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
    module.head_dim = max(size[2] for size in sizes)


def _put(owner: nn.Module, name: str, made: Tensor) -> None:
    """Set a parameter or buffer anew."""
    before = getattr(owner, name)
    setattr(owner, name, nn.Parameter(made, before.requires_grad) if isinstance(before, nn.Parameter) else made)


def _smaller(kept: _Kept, position: object) -> HeadGroup:
    """The group of the heads that stay."""
    group, scoring = kept.group, kept.group.scoring
    if isinstance(scoring.normaliser, Softmax):
        scoring = replace(scoring, normaliser=scoring.normaliser.pick(torch.tensor(kept.heads)))
    if isinstance(scoring, LinearScoring) and scoring.decay is not None:
        scoring = replace(scoring, decay=[scoring.decay[head] for head in kept.kv_heads])
    return replace(
        group,
        heads=len(kept.heads),
        kv_heads=len(kept.kv_heads),
        mask=group.mask if group.pattern is None else _pick_mask(group.pattern, kept.heads),
        position=position,
        scoring=scoring,
    )


def _pick_mask(mask: Pattern, heads: Sequence[int]) -> Pattern:
    """The pattern of some heads.

    Raises:
        MultiheadError: It differs by head, and is no `per_head` that could be taken apart.
    """
    if mask.heads is None:
        return mask
    if isinstance(mask, PerHead):
        return per_head([mask.parts[head] for head in heads])
    if isinstance(mask, Not):
        return ~_pick_mask(mask.part, heads)
    if isinstance(mask, Join):
        parts = [_pick_mask(part, heads) for part in mask.parts]
        return reduce(lambda one, other: one & other if isinstance(mask, And) else one | other, parts)
    raise MultiheadError(
        asked="the mask of some of the heads",
        arrived=f"{mask}, which says what {mask.heads} heads see and cannot be taken apart",
        remedy="build the module with per_head([...]): one pattern for each head",
    )
