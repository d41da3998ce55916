"""One problem, run by a backend and by the reference in float64, compared in everything both give."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from multihead.attend import Backend, Problem, Softmax, define
from multihead.error import MultiheadError

_GRADIENT = 4  # a gradient is a longer sum than an output: this many times the backend's tolerance
_SIGMAS = 6  # of a share of dropped weights: a sound backend is farther off once in 5e8 runs
_COMMON = 40  # keys two queries must share before dropping the same ones counts as a repetition


class Refused(Exception):
    """The backend gave reasons instead of a result."""


class Want(NamedTuple):
    """The reference's results in float64."""

    out: Tensor
    lse: Tensor | None
    weights: Tensor
    parts: Mapping[str, Tensor]


def moved(problem: Problem, device: torch.device | str) -> Problem:
    """The problem with all its tensors on a device; patterns go where they are asked."""
    if problem.q.device == torch.device(device):
        return problem
    mask = problem.mask.to(device) if isinstance(problem.mask, Tensor) else problem.mask
    return replace(_joined(problem, {name: part.to(device) for name, part in _parted(problem).items()}), mask=mask)


def check_inference(backend: Backend, problem: Problem) -> list[str]:
    """Output and log-sum-exp without gradients.

    Args:
        backend: What is held against the reference.
        problem: What it is asked.

    Returns:
        What is wrong, in words.

    Raises:
        Refused: If the backend gives reasons against the problem.
    """
    with torch.no_grad():
        asked = _joined(problem, {name: part.detach() for name, part in _parted(problem).items()})
        out, lse, wrong = _run(backend, asked)
        return wrong + _compare_results(backend, asked, (out, lse), _want(problem))


def check_training(backend: Backend, problem: Problem) -> list[str]:
    """The same with gradients of q, k, v and the sinks, from the output.

    Raises:
        Refused: If the backend gives reasons against the problem.
    """
    return _check_gradients(backend, problem, trained=("q", "k", "v", "sinks"), from_lse=False)


def check_lse_gradient(backend: Backend, problem: Problem) -> list[str]:
    """The same from the output and the log-sum-exp.

    Raises:
        Refused: If the backend gives reasons against the problem, or against the gradient.
    """
    return _check_gradients(backend, problem, trained=("q", "k", "v", "sinks"), from_lse=True)


def check_bias_gradient(backend: Backend, problem: Problem) -> list[str]:
    """The same with the gradient of the bias.

    Raises:
        Refused: If the backend gives reasons against the problem.
    """
    return _check_gradients(backend, problem, trained=("q", "k", "v", "sinks", "bias"), from_lse=True)


def check_dropout(backend: Backend, problem: Problem) -> list[str]:
    """That dropout drops the right share, anew for each query, by the seed, and the same in the backward pass.

    Values that pick out one key each show the weights that were used.

    Raises:
        Refused: If the backend gives reasons against the problem.
    """
    seed = int(torch.randint(2**31, ()))
    ones = torch.eye(problem.kv_len, dtype=problem.v.dtype, device=problem.v.device)
    shown = replace(problem, v=ones.expand(*problem.v.shape[:2], -1, -1))
    with torch.no_grad():
        torch.manual_seed(seed)
        used, _, wrong = _run(backend, shown)
        torch.manual_seed(seed + 1)
        other, _, _ = _run(backend, shown)
    keep = used != 0
    want = _want(problem, keep)
    seen = want.weights > 10 * torch.finfo(problem.q.dtype).tiny
    thinned = want.weights * keep / (1 - problem.dropout)
    wrong += _compare("weights with dropout", used, thinned.to(used.dtype), _tolerance(backend, problem))
    wrong += _judge_share(keep[seen], 1 - problem.dropout) + _judge_rows(keep, seen)
    if torch.equal(used, other):
        wrong.append("another seed drops the same weights")
    torch.manual_seed(seed)
    return wrong + _check_gradients(backend, problem, trained=("q", "k", "v", "sinks"), from_lse=False, keep=keep)


def _check_gradients(
    backend: Backend, problem: Problem, *, trained: tuple[str, ...], from_lse: bool, keep: Tensor | None = None
) -> list[str]:
    parts = {name: part.detach().requires_grad_(name in trained) for name, part in _parted(problem).items()}
    asked = _joined(problem, parts)
    out, lse, wrong = _run(backend, asked)
    want = _want(problem, keep)
    wrong += _compare_results(backend, asked, (out, lse), want)
    if wrong or out.numel() + sum(part.numel() for part in parts.values()) == 0:
        return wrong
    # Laid out as the gradient of heads that are joined: not contiguous.
    grad_out = torch.randn_like(out.transpose(1, 2).contiguous()).transpose(1, 2)
    results = [(out, want.out, grad_out)]
    if from_lse and lse is not None and want.lse is not None:
        if not lse.requires_grad:
            return [*wrong, "the log-sum-exp has no gradient and does not say so"]
        results.append((lse, want.lse, torch.randn_like(lse)))
    named = {name: part for name, part in parts.items() if part.requires_grad}
    got = _gradients([(mine, grad) for mine, _, grad in results], named, refusable=from_lse)
    due = _gradients([(law, grad.double()) for _, law, grad in results], {name: want.parts[name] for name in named})
    tolerance = _GRADIENT * _tolerance(backend, problem)
    for name, part in named.items():
        wrong += _compare(f"gradient of {name}", got[name], due[name].to(part.dtype), tolerance)
    empty = want.weights.sum(-1) == 0
    if torch.count_nonzero(got["q"][empty]):
        wrong.append("gradient of q is not 0 in a row without any allowed key")
    return wrong


def _gradients(
    results: list[tuple[Tensor, Tensor]], parts: Mapping[str, Tensor], *, refusable: bool = False
) -> dict[str, Tensor]:
    outputs, grads = [result for result, _ in results], [grad for _, grad in results]
    try:
        found = torch.autograd.grad(outputs, list(parts.values()), grads, allow_unused=True, retain_graph=True)
    except MultiheadError as error:
        if refusable:
            raise Refused(str(error)) from error
        raise
    found = cast(Sequence[Tensor | None], found)  # torch's own annotation forgets allow_unused
    pairs = zip(parts.items(), found, strict=True)
    return {name: torch.zeros_like(part) if grad is None else grad for (name, part), grad in pairs}


def _run(backend: Backend, problem: Problem) -> tuple[Tensor, Tensor | None, list[str]]:
    """Its results, and whether it left the inputs alone."""
    reasons = backend.why_not(problem)
    if reasons:
        raise Refused(*reasons)
    before = {name: part.detach().clone() for name, part in _parted(problem).items()}
    out, lse = backend.run(problem)
    after = _parted(problem)
    return out, lse, [f"{name} was written to" for name in after if not torch.equal(after[name], before[name])]


def _compare_results(backend: Backend, problem: Problem, got: tuple[Tensor, Tensor | None], want: Want) -> list[str]:
    tolerance, (out, lse) = _tolerance(backend, problem), got
    wrong = _compare("output", out, want.out.to(problem.q.dtype), tolerance)
    if (lse is None) != (want.lse is None):
        wrong.append("log-sum-exp is missing" if lse is None else "there is a log-sum-exp, but the normaliser has none")
    elif lse is not None and want.lse is not None:
        wrong += _compare("log-sum-exp", lse, want.lse.to(problem.wide), tolerance)
    if not wrong and torch.count_nonzero(out[want.weights.sum(-1) == 0]):
        wrong.append("output is not 0 in a row without any allowed key")
    return wrong


def _compare(name: str, got: Tensor, want: Tensor, tolerance: float) -> list[str]:
    """What is wrong with a tensor: dtype, shape, NaN, infinities, or the largest difference with its place."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return [f"{name} is {got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}"]
    got, want = got.detach().double(), want.detach().double()
    if bool(got.isnan().any()):
        return [f"{name} has NaN at {got.isnan().nonzero()[0].tolist()}"]
    if not torch.equal(got.isinf(), want.isinf()) or not torch.equal(got[got.isinf()], want[want.isinf()]):
        return [f"{name} has {int(got.isinf().sum())} infinities, not the {int(want.isinf().sum())} of the reference"]
    error = (got - want).where(~want.isinf(), 0).abs()
    limit = tolerance * max(1.0, float(want.where(~want.isinf(), 0).abs().max()) if want.numel() else 1.0)
    if not error.numel() or float(error.max()) <= limit:
        return []
    place = torch.unravel_index(error.argmax(), error.shape)
    told = f"{float(got[place]):.7g}, not {float(want[place]):.7g}"
    return [f"{name} is off by {float(error.max()):.2g} (limit {limit:.2g}) at {[int(i) for i in place]}: {told}"]


def _judge_share(kept: Tensor, share: float) -> list[str]:
    if kept.numel() == 0:
        return []
    found, sigma = float(kept.double().mean()), (share * (1 - share) / kept.numel()) ** 0.5
    return [] if abs(found - share) <= _SIGMAS * sigma else [f"dropout keeps a share of {found:.4f}, not {share:.4f}"]


def _judge_rows(keep: Tensor, seen: Tensor) -> list[str]:
    """Whether two queries, of any head or batch row, dropped exactly the same keys."""
    sign = torch.where(keep, 1.0, -1.0).where(seen, 0.0).flatten(0, 2)
    common = seen.flatten(0, 2).float()
    shared = common @ common.T
    same = (sign @ sign.T == shared) & (shared >= _COMMON)
    same &= ~torch.eye(same.shape[0], dtype=torch.bool, device=same.device)
    return [f"queries {same.nonzero()[0].tolist()} drop exactly the same keys"] if bool(same.any()) else []


def _want(problem: Problem, keep: Tensor | None = None) -> Want:
    parts = {name: part.detach().double().requires_grad_() for name, part in _parted(problem).items()}
    with torch.enable_grad():
        out, lse, weights = define(_joined(problem, parts), keep)
    return Want(out, lse, weights.detach(), parts)


def _tolerance(backend: Backend, problem: Problem) -> float:
    if problem.q.dtype not in backend.TOLERANCE:
        raise Refused(f"no tolerance is given for {problem.q.dtype}")
    return backend.TOLERANCE[problem.q.dtype]


def _parted(problem: Problem) -> dict[str, Tensor]:
    """The tensors of a problem that a gradient may flow to."""
    parts = {"q": problem.q, "k": problem.k, "v": problem.v}
    if problem.bias is not None:
        parts["bias"] = problem.bias if isinstance(problem.bias, Tensor) else problem.bias.weight
    if isinstance(problem.normaliser, Softmax) and problem.normaliser.sinks is not None:
        parts["sinks"] = problem.normaliser.sinks
    return parts


def _joined(problem: Problem, parts: Mapping[str, Tensor]) -> Problem:
    """The problem with other tensors."""
    bias, normaliser = problem.bias, problem.normaliser
    if bias is not None:
        bias = parts["bias"] if isinstance(bias, Tensor) else bias.with_weight(parts["bias"])
    if "sinks" in parts and isinstance(normaliser, Softmax):
        normaliser = replace(normaliser, sinks=parts["sinks"])
    return replace(problem, q=parts["q"], k=parts["k"], v=parts["v"], bias=bias, normaliser=normaliser)
