"""PyTorch's FlexAttention: a kernel written for each problem on CUDA, its plain form on the CPU.

It runs by name. Patterns become its block masks with our tile maps: whole tiles are passed over or taken, partial ones
are looked up in the bits that are stored for them, equal tiles once.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from multihead.attend.fit import buried, fit
from multihead.attend.normaliser import Softmax
from multihead.attend.order import hidden
from multihead.attend.problem import Problem
from multihead.error import BackendRefused
from multihead.pattern import Pattern, Tile, TileMap, lower
from multihead.position import ALiBi

NAME = "flex"
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BLOCK = 128  # queries and keys of a tile of its kernels

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def why_not(problem: Problem) -> list[str]:
    """Every reason against it, in words; none if it can run the problem."""
    reasons: list[str] = []
    if not isinstance(problem.normaliser, Softmax):
        reasons.append(f"FlexAttention has softmax only, not {problem.normaliser}")
    if problem.dropout > 0:
        reasons.append("FlexAttention has no dropout")
    sizes = ("batch", "heads", "q_len", "kv_len", "head_dim", "v_head_dim")
    reasons += [f"{name} is 0, which FlexAttention does not take" for name in sizes if getattr(problem, name) == 0]
    unseen = hidden(problem)
    reasons += [f"it has no {what}" for what in unseen]
    # A number of what vmap goes over cannot be looked at.
    if not unseen and buried(problem):
        reasons.append("a row of the bias is beyond +-1000 throughout, too much for its log-sum-exp to base 2")
    return reasons + _why_not_here(problem)


def _why_not_here(problem: Problem) -> list[str]:
    """Reasons of the device."""
    kind, graded = problem.q.device.type, torch.is_grad_enabled()
    if kind == "cpu":
        return ["FlexAttention has no backward pass on the CPU"] if graded and _asks_gradient(problem) else []
    if kind != "cuda":
        return [f"FlexAttention runs on cpu and cuda, not on {kind}"]
    return ["FlexAttention's kernels have no float64"] if problem.q.dtype == torch.float64 else []


def how(problem: Problem) -> str:
    """What would run, in words."""
    if problem.q.device.type == "cuda":
        return "FlexAttention, compiled for this problem at its first call (tens of seconds)"
    scores = problem.batch * problem.heads * problem.q_len * problem.kv_len * problem.wide.itemsize
    return (
        "FlexAttention's plain form, which stores every score "
        f"({scores / 2**20:,.1f} MiB): compiled for the CPU it gives no log-sum-exp"
    )


def run(problem: Problem) -> tuple[Tensor, Tensor | None]:
    """Output (batch, heads, q_len, v_head_dim) and log-sum-exp (batch, heads, q_len)."""
    from torch.nn.attention.flex_attention import AuxRequest

    given = arguments(problem)
    if problem.q.device.type == "cuda":
        out, aux = _compiled()(**given, return_aux=AuxRequest(lse=True))
    else:
        with warnings.catch_warnings():
            # That it stores the scores is what `how` says.
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            out, aux = _function()(**given, return_aux=AuxRequest(lse=True))
    return with_sinks(problem, out[..., : problem.v_head_dim], aux.lse.to(problem.wide))


def compiled(problem: Problem) -> Tensor:
    """The output by the kernel that is compiled for the problem, (batch, heads, q_len, v_head_dim).

    On the CPU as well, where it gives no log-sum-exp, so that sinks cannot be put in.

    Raises:
        BackendRefused: It cannot run the problem, or there are sinks and it runs on the CPU.
    """
    reasons = why_not(problem)
    plain = isinstance(problem.normaliser, Softmax) and problem.normaliser.plain
    reasons += [] if plain else ["sinks need a log-sum-exp, which it does not give"]
    if reasons:
        raise BackendRefused(
            asked=f"attention of {problem} by compiled FlexAttention",
            reasons={NAME: reasons},
            remedy='pass backend="auto"',
        )
    return _compiled()(**arguments(problem))[..., : problem.v_head_dim]


def arguments(problem: Problem) -> dict[str, Any]:
    """A problem as the arguments of `flex_attention`; sinks are put in afterwards, by `with_sinks`."""
    head_dim = max(problem.head_dim, 16)  # its kernels take no fewer
    q, k = (fit(x, head_dim) for x in (problem.q, problem.k))
    return {
        "query": q,
        "key": k,
        "value": fit(problem.v, problem.v_head_dim),
        "score_mod": _score(problem),
        "block_mask": _block_mask(problem),
        "scale": problem.scale,
        "enable_gqa": problem.group != 1,
    }


def with_sinks(problem: Problem, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp with the sinks, which take up weight and give nothing: out * exp(lse - lse with them)."""
    normaliser = problem.normaliser
    lse = lse.where(lse.isfinite() | lse.isnan(), -torch.inf) if lse.dtype == torch.float32 else lse
    if not isinstance(normaliser, Softmax) or normaliser.plain:
        return out, lse
    total = normaliser.with_sink(lse)
    share = torch.exp(lse - total.where(~total.isneginf(), 0.0))
    return (out * share[..., None]).to(out.dtype), total


def _asks_gradient(problem: Problem) -> bool:
    bias, normaliser = problem.bias, problem.normaliser
    held = [problem.q, problem.k, problem.v]
    held += [] if bias is None else [bias if isinstance(bias, Tensor) else bias.weight]
    held += [normaliser.sinks] if isinstance(normaliser, Softmax) and normaliser.sinks is not None else []
    return any(tensor.requires_grad for tensor in held)


def _score(problem: Problem) -> Score | None:
    """Softcap and bias of one score, at the places of its query and key."""
    softcap, bias = problem.softcap, problem.bias
    if softcap is None and bias is None:
        return None
    added = _added(problem)

    def score(raw: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        capped = raw if softcap is None else softcap * torch.tanh(raw / softcap)
        return capped if added is None else capped + added(b, h, i, j)

    return score


def _added(problem: Problem) -> Sees | None:
    bias, first = problem.bias, problem.q_offset or 0
    if bias is None:
        return None
    if isinstance(bias, ALiBi):
        slopes = bias.slopes.to(problem.wide)
        return lambda b, h, i, j: -slopes[h] * (i + first - j).abs()
    if isinstance(bias, Tensor):
        table = bias.to(problem.wide).expand(-1, -1, problem.q_len, problem.kv_len)
        one_batch, one_head = table.shape[0] == 1, table.shape[1] == 1
        return lambda b, h, i, j: table[b * (not one_batch), h * (not one_head), i, j]
    # Of a bias of distances: one number a head and distance.
    wide = bias.with_weight(bias.weight.to(problem.wide))
    distances = torch.arange(first - problem.kv_len + 1, first + problem.q_len, device=problem.q.device)
    line = wide.scores(distances, distances.new_zeros(1))[0, :, :, 0]
    return lambda b, h, i, j: line[h, i - j + problem.kv_len - 1]


def _block_mask(problem: Problem) -> Any:
    """The mask of a problem: tiles to pass over, to take whole, and to look into."""
    from torch.nn.attention.flex_attention import BlockMask

    if problem.mask is None:
        return None
    device, lengths = problem.q.device, (problem.q_len, problem.kv_len)
    if isinstance(problem.mask, Tensor):
        classes, sees = _of_tensor(problem.mask.expand(-1, -1, *lengths))
    else:
        tiles = _tiles(problem.mask, *lengths, problem.q_offset or 0)
        classes, sees = tiles.classes.to(device), _looked_up(tiles, device)
    listed = (part for kind in (Tile.PARTIAL, Tile.FULL) for part in _listed(classes == kind))
    return BlockMask.from_kv_blocks(*listed, BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=lengths)


@lru_cache(maxsize=64)
def _tiles(pattern: Pattern, q_len: int, kv_len: int, q_offset: int) -> TileMap:
    return lower(pattern, q_len, kv_len, block=BLOCK, q_offset=q_offset)


def _looked_up(tiles: TileMap, device: torch.device) -> Sees:
    """The truth of every pair by the bits of its tile; those of whole tiles stand behind the others."""
    bits = torch.cat([tiles.bits, torch.zeros_like(tiles.bits[:1]), torch.full_like(tiles.bits[:1], 255)])
    if not tiles.bits.shape[0]:
        bits = torch.tensor([[[0]], [[255]]], dtype=torch.uint8).expand(2, BLOCK, BLOCK // 8)
    bits = bits.to(device)
    whole = tiles.classes.int() // 2 + tiles.bits.shape[0]
    where = torch.where(tiles.classes == Tile.PARTIAL, tiles.index, whole).to(device)
    one_batch, one_head = where.shape[0] == 1, where.shape[1] == 1

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        tile = where[b * (not one_batch), h * (not one_head), i // BLOCK, j // BLOCK]
        return (bits[tile, i % BLOCK, j % BLOCK // 8] >> (j % 8).to(torch.uint8) & 1).bool()

    return sees


def _of_tensor(mask: Tensor) -> tuple[Tensor, Sees]:
    """Classes of the tiles of a boolean tensor, and its truth."""
    sizes = mask.shape[2:]
    ends = [x for size in reversed(sizes) for x in (0, -size % BLOCK)]
    grids = [
        torch.nn.functional.pad(mask, ends, value=beyond).unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        for beyond in (False, True)
    ]
    some, every = grids[0].any(-1).any(-2), grids[1].all(-1).all(-2)
    one_batch, one_head = mask.shape[0] == 1, mask.shape[1] == 1
    return some.int() + every.int(), lambda b, h, i, j: mask[b * (not one_batch), h * (not one_head), i, j]


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles of each row of tiles are chosen, and which, these first."""
    order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _function() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@lru_cache(maxsize=1)
def _compiled() -> Any:
    return torch.compile(_function(), dynamic=False)
