"""Holds a backend against the reference in float64: results, gradients, edges, dropout."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from multihead.attend import Backend, Problem, find
from multihead.testing import compare
from multihead.testing.case import Build, Case, Draw, standard_cases

_SHOWN = 5  # failures in the message of an AssertionError

Check = Callable[[Backend, Problem], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What came of one problem in one mode.

    Args:
        case: Name of the problem.
        mode: "inference", "training" (gradients of q, k, v and sinks from the output), "gradient of lse" (from both
            results), "gradient to bias" (its gradient as well) or "dropout".
        seed: Of the problem's random numbers.
        outcome: "passed", "refused" or "failed".
        told: The backend's reasons for refusing, or what went wrong.
    """

    case: str
    mode: str
    seed: int
    outcome: str
    told: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.case} ({self.mode}, seed {self.seed}): {self.outcome}" + "".join(f"; {t}" for t in self.told)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendReport:
    """What came of holding a backend against the reference; print it.

    Args:
        backend: Its name.
        results: One for each problem, mode and seed.
    """

    backend: str
    results: tuple[CaseResult, ...]

    def of(self, outcome: str) -> tuple[CaseResult, ...]:
        """The results with this outcome: "passed", "refused" or "failed"."""
        return tuple(result for result in self.results if result.outcome == outcome)

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(outcome))} {outcome}" for outcome in ("passed", "refused", "failed"))
        return "\n".join([f"{self.backend}: {counts}", *(f"  {result}" for result in self.results)])


def check_backend(
    backend: Backend | str,
    *,
    problems: Iterable[Problem] | None = None,
    seeds: Sequence[int] = (0,),
    device: torch.device | str = "cpu",
) -> BackendReport:
    """Holds a backend against the reference in float64.

    For each problem that the backend does not refuse: output, log-sum-exp and every gradient within its `TOLERANCE`;
    the right shapes and dtypes; -inf, 0 and gradient 0 in empty rows, never NaN; inputs left as they were. With dropout
    that the right share is dropped, the same weights in the backward pass as in the forward pass, others with another
    seed; a backend must draw by the seed and the sizes, not by the values.

    Args:
        backend: A module with the names of `Backend`, or the name of one of the library's.
        problems: What to hold it to; None is `standard_cases()`.
        seeds: Of the random numbers: of the standard problems, of incoming gradients, of dropout.
        device: Where the problems are put.

    Returns:
        Each problem with what came of it. Problems that a backend refuses are listed with its reasons.

    Raises:
        AssertionError: If anything failed, with the first failures, or if the backend refused everything.

    Example:
        >>> report = check_backend("tiled")
        >>> len(report.of("failed")), len(report.of("refused"))
        (0, 0)
    """
    held = find(backend) if isinstance(backend, str) else backend
    if problems is None:
        cases = standard_cases()
    else:
        cases = tuple(Case(name=str(problem), build=_always(problem)) for problem in problems)
    results = [
        result for seed in seeds for case in cases for result in check_case(held, case, seed=seed, device=device)
    ]
    report = BackendReport(backend=held.NAME, results=tuple(results))
    failed = report.of("failed")
    if failed:
        shown = "\n".join(f"  {result}" for result in failed[:_SHOWN])
        raise AssertionError(f"{held.NAME}: {len(failed)} of {len(results)} failed, the first are\n{shown}")
    if not report.of("passed"):
        raise AssertionError(f"{held.NAME} ran none of {len(results)} problems:\n{report}")
    return report


def check_case(
    backend: Backend, case: Case, *, seed: int = 0, device: torch.device | str = "cpu"
) -> tuple[CaseResult, ...]:
    """Holds a backend to one problem, in each mode that makes a difference for it.

    Args:
        backend: A module with the names of `Backend`.
        case: The problem.
        seed: Of the random numbers.
        device: Where the problem is put.

    Returns:
        One result for each mode.
    """
    problem = compare.moved(case.build(Draw(seed)), device)
    results: list[CaseResult] = []
    with torch.random.fork_rng():
        for mode, check in _modes(problem).items():
            torch.manual_seed(seed)
            outcome, told = _outcome(check, backend, problem)
            results.append(CaseResult(case=case.name, mode=mode, seed=seed, outcome=outcome, told=tuple(told)))
    return tuple(results)


def _modes(problem: Problem) -> dict[str, Check]:
    if problem.dropout > 0:
        return {"dropout": compare.check_dropout}
    modes: dict[str, Check] = {"inference": compare.check_inference, "training": compare.check_training}
    if problem.normaliser.has_lse:
        modes["gradient of lse"] = compare.check_lse_gradient
    if problem.bias is not None:
        modes["gradient to bias"] = compare.check_bias_gradient
    return modes


def _outcome(check: Check, backend: Backend, problem: Problem) -> tuple[str, Sequence[str]]:
    try:
        wrong = check(backend, problem)
    except compare.Refused as refusal:
        return "refused", [str(reason) for reason in refusal.args]
    except Exception as error:  # whatever it is, it is the backend's failure and is reported as such
        return "failed", [f"{type(error).__name__}: {error}"]
    return ("failed", wrong) if wrong else ("passed", [])


def _always(problem: Problem) -> Build:
    return lambda draw: problem
