"""Queries and keys as they stand: normalised, turned, and joined with those of the cache."""

from torch import Tensor

from multihead.layer.call import Call
from multihead.layer.part import GroupPart, turned

# Queries, keys and values of a group, (batch, heads, length, width); no keys where a cache has them all.
Projected = tuple[Tensor, Tensor | None, Tensor | None]


def placed(
    call: Call, group: tuple[int, GroupPart], qkv: Projected, positions: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Queries of a group, keys and values they attend to, and the position of the first key.

    Args:
        call: The call; new keys go into its cache.
        group: The group's number, and what it learns.
        qkv: Projected.
        positions: Where the tokens stand, as `forward` got it; checked also where nothing turns.
    """
    (place, part), (q, k, v) = group, qkv
    q, k = part.normed(q, part.q_norm), k if k is None else part.normed(k, part.k_norm)
    if positions is None and not part.turns:
        return q, *call.kept(place, k, v, q.dtype)
    if part.turns_late:
        return _placed_late(call, group, (q, k, v), positions)
    given = positions is not None
    rotation = part.rotation(call.q_positions(positions), q) if given else part.rotation_from(call.first, q)
    if k is not None:
        # Angles are made once where queries and keys stand alike.
        k = turned(k, rotation if call.stand_alike else part.rotation_from(0, k))
    return turned(q, rotation), *call.kept(place, k, v, q.dtype)


def _placed_late(
    call: Call, group: tuple[int, GroupPart], qkv: Projected, positions: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """The same where all keys are turned anew, by angles that depend on how long the text is by now."""
    (place, part), (q, k, v) = group, qkv
    q_pos = call.q_positions(positions)
    k, v, first = call.kept(place, k, v, q.dtype)
    length = call.seen(k.shape[2] + first, positions)
    k_pos = call.late_positions(first, k.shape[2], q_pos)
    k = turned(k, part.rotation(k_pos, k, length=length))
    return turned(q, part.rotation(q_pos, q, length=length)), k, v, first
