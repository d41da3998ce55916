"""Queries and keys as they stand: normalised, turned, and joined with those of the cache."""

from torch import Tensor

from multihead.layer.call import Call
from multihead.layer.part import GroupPart, turned


def placed(
    call: Call, part: GroupPart, qkv: tuple[Tensor, Tensor, Tensor], positions: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Queries, and keys and values to attend to, of the only group of a module; the position of the first key.

    Args:
        call: The call; new keys go into its cache.
        part: What the group learns, with its position.
        qkv: Projected (batch, heads, length, width).
        positions: Where the tokens stand, as `forward` got it.
    """
    q, k, v = part.normed(qkv[0], part.q_norm), part.normed(qkv[1], part.k_norm), qkv[2]
    q_pos = call.q_positions(positions)
    if not part.turns_late:
        rotation, k_pos = part.rotation(q_pos, q), call.k_positions(q_pos)
        k = turned(k, rotation if k_pos is q_pos else part.rotation(k_pos, k))
        return turned(q, rotation), *call.kept(0, k, v, q.dtype)
    k, v, first = call.kept(0, k, v, q.dtype)
    length = call.seen(k.shape[2] + first, positions)
    k_pos = call.late_positions(first, k.shape[2], q_pos)
    q = turned(q, part.rotation(q_pos, q, length=length))
    return q, turned(k, part.rotation(k_pos, k, length=length)), v, first
