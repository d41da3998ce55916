"""Random patterns and problems from a seed alone, fast enough for tens of thousands of them."""

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from multihead.attend import Problem, Softmax, make_problem
from multihead.pattern import (
    Pattern,
    after_same_token,
    band,
    causal,
    distance,
    document,
    everything,
    global_tokens,
    keys_at,
    nothing,
    padding,
    pairs,
    per_head,
    prefix,
    same_token,
    sliding_window,
)
from multihead.position import AdaptiveSpan, ALiBi, PositionBias, RelativeTable
from multihead.testing.case import Draw, Sizes

_EDGES = (0, 1, 2, 63, 64, 65, 128)  # lengths at which blocks of 64 end, or nearly
_DIMS = (1, 2, 3, 8, 15, 16, 17, 31, 32, 48, 64, 80, 96, 100, 128, 192, 255, 256)
_WORK = 2**18  # most weights of a problem, over batch rows and heads
_DEEPEST = 2


def random_pattern(dice: random.Random, *, batch: int = 1, heads: int | None = None, length: int) -> Pattern:
    """Any pattern that the factories and the algebra make, over positions below `length`.

    Args:
        dice: Where the choices come from; `random.Random(seed)` repeats them.
        batch: Rows of patterns that differ by row; 0 gives none that do.
        heads: Heads of patterns that differ by head; None gives none that do.
        length: Of what patterns hold by position, at least 1.

    Example:
        >>> import random
        >>> random_pattern(random.Random(3), length=9) == random_pattern(random.Random(3), length=9)
        True
    """
    if heads is not None and dice.random() < 0.2:
        return per_head([_grown(dice, batch, length, _DEEPEST - 1) for _ in range(heads)]) if heads else everything()
    return _grown(dice, batch, length, _DEEPEST)


def _grown(dice: random.Random, batch: int, length: int, depth: int) -> Pattern:
    if depth == 0 or dice.random() < 0.4:
        return dice.choice((_relative, _placed, _tokened))(dice, batch, length)
    left = _grown(dice, batch, length, depth - 1)
    joined = dice.choice("&&|~")
    if joined == "~":
        return ~left
    right = _grown(dice, batch, length, depth - 1)
    return left & right if joined == "&" else left | right


def _relative(dice: random.Random, batch: int, length: int) -> Pattern:
    near = dice.randint(0, length)
    made: list[Callable[[], Pattern]] = [
        everything,
        nothing,
        causal,
        lambda: sliding_window(near + 1),
        lambda: band(near, dice.randint(0, length)),
        lambda: distance(dice.randint(-length, length)),
        lambda: prefix(near),
        lambda: causal().at(q_offset=dice.randint(-length, length)),
    ]
    return dice.choice(made)()


def _placed(dice: random.Random, batch: int, length: int) -> Pattern:
    spots = [dice.randrange(length) for _ in range(dice.randint(0, 5))]
    made: list[Callable[[], Pattern]] = [
        lambda: global_tokens(spots),
        lambda: keys_at(spots),
        lambda: pairs(torch.randint(length, (dice.randint(0, 3 * length), 2), generator=_seeded(dice))),
    ]
    return dice.choice(made)()


def _tokened(dice: random.Random, batch: int, length: int) -> Pattern:
    shape = (batch, length) if batch and dice.random() < 0.5 else (length,)
    generator = _seeded(dice)
    runs = torch.arange(length) // dice.choice((1, 7, 40)) if dice.random() < 0.5 else torch.zeros(length).long()

    def ids() -> Tensor:
        return torch.randint(dice.choice((2, 5, 50)), shape, generator=generator) + runs * dice.choice((0, 1, 2**33))

    made: list[Callable[[], Pattern]] = [
        lambda: document(torch.randint(2, shape, generator=generator).cumsum(-1) // 9),
        lambda: document(ids()),
        lambda: document(ids(), keys=ids()),
        lambda: same_token(ids()),
        lambda: after_same_token(ids()),
        lambda: padding(torch.rand(shape, generator=generator) < dice.choice((0.1, 0.5, 0.95))),
    ]
    return dice.choice(made)()


def random_problem(
    seed: int, *, dtype: torch.dtype = torch.float32, longest: int = 300, widest: int = 256, poisoned: bool = False
) -> Problem:
    """A random softmax problem: any sizes (0 too), layouts, masks, biases, sinks, softcap, scales; logits up to 1e4.

    Args:
        seed: The same gives the same problem.
        dtype: Of queries, keys and values.
        longest: Most queries and most keys.
        widest: Largest head_dim and v_head_dim.
        poisoned: True puts infinities and NaN into some queries, keys and values.

    Example:
        >>> random_problem(7).q.equal(random_problem(7).q)
        True
    """
    dice = random.Random(seed)
    sizes, numbers = _sizes(dice, longest, widest), Draw(dice.getrandbits(31))
    scale = dice.choice((None, None, None, 0.0, 1.0, -0.3, 2.5))
    # The standard deviation of the logits: most rows have some three times as far out.
    spread = dice.choice((0.3, 1.0, 1.0, 5.0, 3e3))
    factor = math.sqrt(spread / (abs(scale) * math.sqrt(sizes.head_dim) if scale else 1.0))
    q, k, v = (_laid_out(dice, x) for x in numbers.qkv(sizes, dtype=dtype))
    q, k = q * factor, k * factor
    if poisoned:
        q, k, v = (_poisoned(dice, x) for x in (q, k, v))
    mask, q_offset = _mask(dice, sizes, numbers, longest)
    return make_problem(
        *(_laid_out(dice, x) for x in (q, k, v)),
        mask=mask,
        bias=_bias(dice, sizes, numbers),
        scale=scale,
        softcap=dice.choice((None, None, 1.5, 30.0)),
        normaliser=_normaliser(dice, sizes, numbers),
        q_offset=q_offset,
    )


def _sizes(dice: random.Random, longest: int, widest: int) -> Sizes:
    def length() -> int:
        return min(longest, dice.choice(_EDGES) if dice.random() < 0.3 else dice.randint(0, longest))

    def dim() -> int:
        return min(widest, dice.choice(_DIMS) if dice.random() < 0.8 else dice.randint(1, widest))

    q_len, kv_len, kv_heads = 1 if dice.random() < 0.15 else length(), length(), dice.randint(1, 3)
    room = max(1, _WORK // max(1, q_len * kv_len))
    kv_heads = min(kv_heads, room)
    group = min(dice.choice((1, 1, 2, 3, 7)), max(1, room // kv_heads))
    batch = 0 if dice.random() < 0.01 else min(dice.randint(1, 3), max(1, room // (kv_heads * group)))
    head_dim = dim()
    return Sizes(
        batch=batch,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        v_head_dim=head_dim if dice.random() < 0.5 else dim(),
    )


def _mask(dice: random.Random, sizes: Sizes, numbers: Draw, longest: int) -> tuple[Pattern | Tensor | None, int]:
    """A mask, and an offset at which all its positions are held."""
    kind, offset = dice.choice(("none", "tensor", "pattern", "pattern", "pattern")), dice.randint(0, longest)
    if kind == "none":
        return None, dice.choice((0, offset, -offset))
    if kind == "tensor":
        least = dice.choice((-2.0, 0.0, 2.0))
        return _broadcast(dice, sizes, lambda *shape: numbers.normal(*shape) > least), offset
    pattern = random_pattern(dice, batch=sizes.batch, heads=sizes.heads, length=2 * longest + 1)
    return pattern, offset if pattern.data else dice.choice((0, offset, -offset))


def _bias(dice: random.Random, sizes: Sizes, numbers: Draw) -> Tensor | PositionBias | None:
    kind = dice.choice(("none", "none", "none", "tensor", "holes", "lowest", "alibi", "table", "span"))
    if kind == "none":
        return None
    dtype = dice.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64))
    if kind == "alibi":
        return ALiBi(numbers.normal(sizes.heads, dtype=dtype, spread=dice.choice((0.01, 1.0))))
    if kind == "span":
        spans = numbers.normal(sizes.heads, dtype=dtype, spread=dice.choice((3.0, 60.0)))
        return AdaptiveSpan(spans, ramp=dice.choice((1, 5, 32)))
    if kind == "table":
        table = numbers.normal(dice.choice((8, 32)), sizes.heads, dtype=dtype)
        return RelativeTable(table, bidirectional=dice.random() < 0.5, max_distance=dice.choice((20, 128)))
    spread = dice.choice((1.0, 1.0, 3e3))
    bias = _broadcast(dice, sizes, lambda *shape: numbers.normal(*shape, dtype=dtype, spread=spread))
    if kind == "lowest" and dtype != torch.float64:  # whose lowest number is -inf in float32
        return bias.masked_fill(bias[..., :1] < 0, torch.finfo(dtype).min)
    return bias.masked_fill(bias < -0.5 * spread, -math.inf) if kind == "holes" else bias


def _normaliser(dice: random.Random, sizes: Sizes, numbers: Draw) -> Softmax:
    if dice.random() < 0.6:
        return Softmax(off_by_one=dice.random() < 0.2)
    spread = dice.choice((1.0, 1.0, 3e3))
    return Softmax(sinks=numbers.normal(sizes.heads, spread=spread), off_by_one=dice.random() < 0.3)


def _broadcast(dice: random.Random, sizes: Sizes, make: Callable[..., Tensor]) -> Tensor:
    """A tensor that broadcasts to (batch, heads, q_len, kv_len), with or without gaps."""
    full = (sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)
    made = make(*(1 if dice.random() < 0.3 else size for size in full))
    return made.mT.contiguous().mT if dice.random() < 0.2 else made


def _laid_out(dice: random.Random, x: Tensor) -> Tensor:
    """The same numbers at other places in memory."""
    layouts: list[Callable[[Tensor], Tensor]] = [
        lambda x: x,
        lambda x: x,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: torch.cat([x[:, :, :1], x], 2)[:, :, 1:] if x.shape[2] else x,
        lambda x: x[:1].expand(x.shape[0], -1, -1, -1) if x.shape[0] else x,
    ]
    return dice.choice(layouts)(x)


def _poisoned(dice: random.Random, x: Tensor) -> Tensor:
    """Some numbers replaced by infinities and NaN."""
    made, count = x.clone(), dice.choice((0, 1, 3))
    for _ in range(count if made.numel() else 0):
        place = tuple(dice.randrange(size) for size in made.shape)
        made[place] = dice.choice((math.inf, -math.inf, math.nan))
    return made


def _seeded(dice: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(dice.getrandbits(31))
