"""A group of linear heads within a module of several kinds of heads."""

from typing import cast

from torch import Tensor

from multihead.error import MultiheadError
from multihead.layer.call import Call
from multihead.layer.linear_part import LinearPart
from multihead.layer.placing import Projected
from multihead.layer.scan_cache import StateGroup
from multihead.layer.scan_mask import Order
from multihead.scan import LinearState


def linear_heads(call: Call, place: int, part: LinearPart, qkv: Projected, positions: Tensor | None) -> Tensor:
    """Heads (batch, heads, q_len, v_head_dim) of one call; the state of a cache goes on.

    Args:
        call: The call.
        place: The group's number.
        part: Its features and decays.
        qkv: Projected.
        positions: Where the tokens stand, as `forward` got it.

    Raises:
        MultiheadError: A mask, a bias or an offset that a state cannot keep to.
    """
    q, k, v = qkv
    if k is None or v is None:
        k, v, _ = call.kept(place, None, None, q.dtype)
    order = Order.of(call.mask, k[:, 0], start=call.start)
    _check(call, part, order, k.shape[2], positions)
    held = call.cache.groups[place] if call.cache is not None and call.grows else None
    before = (cast("LinearState | None", held.rows.state), call.start) if isinstance(held, StateGroup) else None
    heads, state = part((q, k, v), order, before)
    if isinstance(held, StateGroup) and state is not None:
        held.rows.put(state, q.shape[2])
    if order.valid is not None and call.key is call.query:
        # Alike whether causal or not: padding gives 0.
        heads = heads.masked_fill(~order.valid[:, None, :, None], 0.0)
    return heads


def _check(call: Call, part: LinearPart, order: Order, kv_len: int, positions: Tensor | None) -> None:
    q_len = call.query.shape[1]
    told = {
        "a bias of scores, which they do not have": call.bias is not None,
        f"causal() with {q_len} queries and {kv_len} keys, q_offset={call.q_offset}": order.causal
        and (q_len != kv_len or call.q_offset not in (None, 0)),
        "positions= that differ from where tokens lie, with a position that turns": positions is not None
        and part.position is not None,
    }
    present = [what for what, there in told.items() if there]
    if present:
        raise MultiheadError(
            asked="linear heads, HeadGroup(..., scoring=LinearScoring(...)), which see earlier tokens only as one sum",
            arrived="; ".join(present),
            remedy="leave it out, or use softmax heads alone: HeadGroup(...) without scoring=LinearScoring(...)",
        )
