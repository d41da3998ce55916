"""A random pattern together with what it means."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from multihead import pattern as mp


@dataclass
class Known:
    """A pattern and its rule(batch row, head, query, key) -> bool.

    The pattern is made when a test asks for it: the type checks of the test run draw random numbers, which a strategy
    must not do.
    """

    make: Callable[[], mp.Pattern]
    rule: Callable[[int, int, int, int], bool]

    @cached_property
    def pattern(self):
        return self.make()
