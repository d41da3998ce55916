"""The exceptions of the library.

An unhelpful error is a bug: each says in three lines what was asked, what arrived (the numbers) and what to do.
"""

from collections.abc import Mapping, Sequence


class MultiheadError(ValueError):
    """An input the library cannot work with.

    Args:
        asked: What the caller wanted, with the rule that was broken.
        arrived: What came instead, with its numbers.
        remedy: What to do about it, as an instruction.

    Example:
        >>> print(MultiheadError(asked="4 heads of 4 kv heads", arrived="kv_heads=3", remedy="pass kv_heads=1, 2 or 4"))
        4 heads of 4 kv heads
          got: kv_heads=3
          fix: pass kv_heads=1, 2 or 4
    """

    def __init__(self, *, asked: str, arrived: str, remedy: str) -> None:
        super().__init__(f"{asked}\n  got: {arrived}\n  fix: {remedy}")
        self.asked = asked
        self.arrived = arrived
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.asked, self.arrived, self.remedy)


class RecordError(MultiheadError):
    """A file that is not a record of this library, or a damaged one."""


class BackendRefused(MultiheadError):
    """A backend that was named, or every one of them, cannot run the problem.

    Args:
        asked: The problem in words.
        reasons: For each backend the reasons it gave; an empty sequence means it could have run.
        remedy: What to do.
    """

    def __init__(self, *, asked: str, reasons: Mapping[str, Sequence[str]], remedy: str) -> None:
        told = "; ".join(f"{name}: {', '.join(why) or 'can run it'}" for name, why in reasons.items())
        super().__init__(asked=asked, arrived=told, remedy=remedy)
        self.reasons = {name: tuple(why) for name, why in reasons.items()}

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_refused, (self.asked, self.reasons, self.remedy)


def _rebuild(kind: type[MultiheadError], asked: str, arrived: str, remedy: str) -> MultiheadError:
    return kind(asked=asked, arrived=arrived, remedy=remedy)


def _rebuild_refused(asked: str, reasons: Mapping[str, Sequence[str]], remedy: str) -> BackendRefused:
    return BackendRefused(asked=asked, reasons=reasons, remedy=remedy)


def kind_and_text(given: object) -> str:
    """What arrived where something of another kind was asked for: its kind, and how it reads.

    Args:
        given: Anything.

    Example:
        >>> kind_and_text(7)
        "int '7'"
    """
    return f"{type(given).__name__} {str(given)[:60]!r}"
