"""What a kind of attention takes on this machine: timed, not counted."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from multihead.advice.sizes import Sizes
from multihead.error import MultiheadError, check_kinds
from multihead.layer import build_attention, find_family
from multihead.pattern import causal

Step = Literal["infer", "train"]
_ADDRESSES = 2**47  # bytes that a machine can tell apart


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCost:
    """How long a whole layer took, projections included.

    Args:
        family: The kind of attention.
        sizes: Of the call.
        step: `"infer"`: a forward pass without gradients; `"train"`: a forward and a backward pass.
        seconds: Median of the rounds.
        least: Of the fastest round.
        most: Of the slowest.
        rounds: How many there were.
        threads: Of torch.
    """

    family: str
    sizes: Sizes
    step: Step
    seconds: float
    least: float
    most: float
    rounds: int
    threads: int


def measure_cost(
    family: str, sizes: Sizes, *, step: Step = "infer", rounds: int = 5, limit: float = 2.0
) -> MeasuredCost:
    """Time a layer of a kind of attention on this machine, on random input.

    The first round is left out, as it may load and compile; it counts alone where it takes the whole limit.

    Args:
        family: Its name: one of `multihead.layer.FAMILIES`.
        sizes: Of the call, without a cache.
        step: `"infer"` or `"train"`.
        rounds: At most.
        limit: Seconds after which no round is begun.

    Raises:
        MultiheadError: An unknown name or step, a kind that cannot do what is asked (causal or not), keys of a cache.

    Example:
        >>> measure_cost("multi_head", Sizes(64), rounds=1).rounds
        1
    """
    _check(family, sizes, step)
    _check_effort(rounds, limit)
    run = _runner(family, sizes, step)
    start = time.perf_counter()
    taken = [_seconds(run)]
    if time.perf_counter() - start < limit:
        taken.clear()
    while not taken or (len(taken) < rounds and time.perf_counter() - start < limit):
        taken.append(_seconds(run))
    return MeasuredCost(
        family=family,
        sizes=sizes,
        step=step,
        seconds=statistics.median(taken),
        least=min(taken),
        most=max(taken),
        rounds=len(taken),
        threads=torch.get_num_threads(),
    )


def _runner(family: str, sizes: Sizes, step: Step) -> Callable[[], None]:
    """One round."""
    dtype = getattr(torch, sizes.dtype)
    # Weights are random numbers too: nobody's are used up by them.
    with torch.random.fork_rng(devices=[]):
        layer = build_attention(family, sizes.embed_dim, sizes.heads).to(dtype)
    mask = causal() if sizes.causal else None
    # Its own generator: nobody's random numbers are used up.
    own = torch.Generator().manual_seed(0)
    x = torch.randn(sizes.batch, sizes.q_len, sizes.embed_dim, generator=own).to(dtype)
    if step == "infer":
        layer.eval()

        def infer() -> None:
            with torch.no_grad():
                layer(x, mask=mask)

        return infer
    return lambda: _train(layer, x, mask)


def _train(layer: nn.Module, x: Tensor, mask: object) -> None:
    given = x.clone().requires_grad_()
    layer.zero_grad(set_to_none=True)
    out = layer(given, mask=mask)
    out.backward(torch.ones_like(out))


def _check_effort(rounds: object, limit: object) -> None:
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        raise MultiheadError(
            asked="rounds: a whole number of at least 1", arrived=f"rounds={rounds!r}"[:200], remedy="pass rounds=5"
        )
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not limit >= 0:
        raise MultiheadError(
            asked="limit: seconds, a number of at least 0", arrived=f"limit={limit!r}"[:200], remedy="pass limit=2.0"
        )


def _check(family: str, sizes: Sizes, step: object) -> None:
    support = find_family(family).support
    check_kinds({"sizes": sizes}, (Sizes,), "Sizes(4096), with the sizes of the call")
    if not isinstance(step, str) or step not in ("infer", "train"):
        raise MultiheadError(asked="step: 'infer' or 'train'", arrived=repr(step)[:100], remedy="pass one of the two")
    if not (support.causal if sizes.causal else support.bidirectional):
        raise MultiheadError(
            asked=f"the time of {family}, {'causal' if sizes.causal else 'where each token sees all'}",
            arrived=f"a kind of attention that is {'bidirectional' if sizes.causal else 'causal'} only",
            remedy=f"Sizes(..., causal={not sizes.causal})",
        )
    size = sizes.batch * sizes.q_len * sizes.embed_dim * sizes.number
    if size > _ADDRESSES:
        raise MultiheadError(
            asked=f"the time of {family} at sizes whose input fits into a memory",
            arrived=f"{size:,} bytes, of batch={sizes.batch}, q_len={sizes.q_len}, embed_dim={sizes.embed_dim}",
            remedy="pass smaller ones; estimate_cost counts what is computed at any size",
        )
    if sizes.keys != sizes.q_len:
        raise MultiheadError(
            asked="a whole text to time",
            arrived=f"q_len={sizes.q_len}, kv_len={sizes.keys}",
            remedy="leave kv_len out",
        )


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
