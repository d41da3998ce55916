"""What a group's selector leaves of the pairs that its heads may see."""

from torch import Tensor

from multihead.attend.check import check_mask
from multihead.attend.selector import Selector
from multihead.layer.base import Options
from multihead.layer.call import Call, Where
from multihead.pattern import Pattern
from multihead.position import PositionBias


def narrowed(call: Call, where: Where, qkv: tuple[Tensor, Tensor, Tensor], options: Options) -> Options:
    """The options of a call with a mask of what was chosen.

    Args:
        call: The call; what was found out about earlier keys is kept with its cache.
        where: The group, whose mask is a selector.
        qkv: Queries, keys and values, as they are multiplied.
        options: Those without the choice.
    """
    selector, (q, k, _) = where.group.mask, qkv
    assert isinstance(selector, Selector)
    held = None if call.cache is None else call.cache.groups[where.place]
    mask, offset = options.get("mask"), options.get("q_offset")
    # Where first keys were let go of, those that are left stand elsewhere than before.
    kept = held.kept if held is not None and where.first == 0 else None
    if q.is_meta:  # shapes alone are asked for
        return options
    chosen, kept = selector.select_on(q, k, kept, mask=mask, q_offset=offset)
    if held is not None:
        held.kept = kept if where.first == 0 else None
    if offset is None and not isinstance(options.get("bias"), PositionBias):
        offset = 0  # where nothing else depends on positions, the choice was made for these
    return {
        **options,
        "q_offset": offset,
        "mask": _both(mask, chosen, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]), offset or 0),
    }


def _both(
    mask: Pattern | Tensor | None, chosen: Pattern, sizes: tuple[int, int, int, int], offset: int
) -> Pattern | Tensor:
    if isinstance(mask, Tensor):
        pairs = chosen.mask(*sizes[2:], q_offset=offset, device=mask.device)
        return check_mask(mask, sizes, mask.device) & pairs
    return chosen if mask is None else mask & chosen
