"""Which backend runs a problem, and what each of them says about it.

A backend is a module of this room with the names of `Backend`. To add one, write the file and put it in a list below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from multihead.attend import blockwise, defined, flex, native, rearranged, sdpa, tiled
from multihead.attend.problem import Problem
from multihead.error import BackendRefused, MultiheadError


@runtime_checkable
class Backend(Protocol):
    """What a backend's module holds.

    `TOLERANCE` is how far its results may be from the reference in float64, for each dtype it supports, as a share of
    the largest magnitude of the result (at least 1); `check_backend` holds it to that.
    """

    NAME: str
    TOLERANCE: Mapping[torch.dtype, float]

    def why_not(self, problem: Problem, /) -> list[str]:
        """Every reason why it cannot run the problem, in words; empty if it can."""
        ...

    def how(self, problem: Problem, /) -> str:
        """What would run, in words."""
        ...

    def run(self, problem: Problem, /) -> tuple[Tensor, Tensor | None]:
        """Output, and log-sum-exp if the normaliser has one."""
        ...


# "auto" takes the first without a reason against it, but for what was measured to go before the first.
AUTOMATIC: tuple[Backend, ...] = (
    cast(Backend, native),
    cast(Backend, blockwise),
    cast(Backend, rearranged),
    cast(Backend, sdpa),
    cast(Backend, tiled),
)
# Only by name: the first was never measured where it is fast, and both store every weight on the CPU.
BY_NAME: tuple[Backend, ...] = (cast(Backend, flex), cast(Backend, defined))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one backend says about a problem.

    Args:
        backend: Its name.
        reasons: Why it cannot run the problem; empty if it can.
        how: What would run; empty if it cannot.
        automatic: False where it runs only by name.
        behind: Why "auto" passes it over although it can: what the measured table prefers; empty if it does not.
    """

    backend: str
    reasons: tuple[str, ...]
    how: str
    automatic: bool
    behind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Which backend runs a problem, and why not the others; print it.

    Args:
        problem: The problem in words.
        chosen: Name of the backend that runs it, or None where the one that was named cannot.
        verdicts: What each backend says, in the order "auto" asks them.
    """

    problem: str
    chosen: str | None
    verdicts: tuple[Verdict, ...]

    def __str__(self) -> str:
        width = max(len(verdict.backend) for verdict in self.verdicts)
        lines = [self.problem]
        for verdict in self.verdicts:
            if verdict.reasons:
                told = "cannot: " + "; ".join(verdict.reasons)
            else:
                state = "chosen" if verdict.backend == self.chosen else "could" if verdict.automatic else "only by name"
                told = f"{state}: {verdict.how}" + f"; {verdict.behind}" * bool(verdict.behind)
            lines.append(f"  {verdict.backend:{width}}  {told}")
        return "\n".join(lines)


def find(name: str) -> Backend:
    """The backend of this name.

    Raises:
        MultiheadError: If there is none.
    """
    every = {backend.NAME: backend for backend in (*AUTOMATIC, *BY_NAME)}
    if type(name) is not str or name not in every:
        raise MultiheadError(
            asked="a backend of this library",
            arrived=f"backend={name!r}"[:200],
            remedy=f'pass "auto" or one of {", ".join(every)}',
        )
    return every[name]


def choose(problem: Problem, backend: str) -> Backend:
    """The backend that runs the problem: the named one, or with "auto" the first that can.

    Raises:
        BackendRefused: If the named one cannot, with all its reasons, or none can.
        MultiheadError: If there is no backend of this name.
    """
    asked = AUTOMATIC if backend == "auto" else (find(backend),)
    reasons: dict[str, list[str]] = {}
    for candidate in asked:
        reasons[candidate.NAME] = candidate.why_not(problem)
        if not reasons[candidate.NAME] and (backend != "auto" or _behind(candidate, problem) is None):
            return candidate
    able = [other.NAME for other in (*AUTOMATIC, *BY_NAME) if other not in asked and not other.why_not(problem)]
    other = "backend=" if backend == "auto" else 'backend="auto", or '
    raise BackendRefused(
        asked=f"attention of {problem} by backend={backend!r}",
        reasons=reasons,
        remedy=f"pass {other}one that can run it: {', '.join(able)}",
    )


def _behind(candidate: Backend, problem: Problem) -> str | None:
    """Why "auto" passes over a backend that can run the problem: one that was measured to be faster can run it too."""
    if candidate.NAME != native.NAME:
        return None
    if not blockwise.why_not(problem):
        return blockwise.ahead(problem)
    told = native.behind(problem)
    return told if told is not None and not sdpa.why_not(problem) else None


def explain(problem: Problem, backend: str) -> Explanation:
    """What each backend says about the problem, and which one runs it."""
    named = None if backend == "auto" else find(backend)
    verdicts: list[Verdict] = []
    for each in (*AUTOMATIC, *BY_NAME):
        reasons = tuple(each.why_not(problem))
        verdicts.append(
            Verdict(
                backend=each.NAME,
                reasons=reasons,
                how="" if reasons else each.how(problem),
                automatic=each in AUTOMATIC,
                behind="" if reasons else _behind(each, problem) or "",
            )
        )
    able = [verdict.backend for verdict in verdicts if not verdict.reasons and _is_asked(verdict, named)]
    return Explanation(problem=str(problem), chosen=able[0] if able else None, verdicts=tuple(verdicts))


def _is_asked(verdict: Verdict, named: Backend | None) -> bool:
    return verdict.automatic and not verdict.behind if named is None else verdict.backend == named.NAME
