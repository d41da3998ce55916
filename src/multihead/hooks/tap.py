"""Those who listen at the seams, and what they are told."""

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from multihead.attend import Problem, make_problem
from multihead.pattern import Pattern, causal

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelCall:
    """What transformers handed to an attention function.

    Args:
        kernel: Name of the implementation, `"eager"` for the model's own default.
        function: The function itself.
        given: Its arguments by name, `module`, `query`, `key`, `value` and `attention_mask` among them.
    """

    kernel: str
    function: Kernel
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnCall:
    """Attention that a module computed by itself, seen from outside.

    Args:
        kernel: What was seen.
        q: Queries (batch, heads, q_len, head_dim), of head_dim 0 where the scores are no product of two.
        k: Keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim).
        mask: True = attend, four dimensions, or None.
        bias: What is added to the products, four dimensions, or None.
        scale: Factor of the products.
        dropout: Share of the weights that was dropped.
        causal: Whether query i sees keys 0 to i.
        time_first: Whether the module works on (length, batch, width).
    """

    kernel: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    bias: Tensor | None = None
    scale: float = 1.0
    dropout: float = 0.0
    causal: bool = False
    time_first: bool = False

    def laid(self, *, time_first: bool) -> "OwnCall":
        """The same call of a module with this layout."""
        return replace(self, time_first=time_first)

    def problem(self, *, past: int | None) -> Problem:
        """What was computed, as a problem.

        Args:
            past: Absolute position of the first query, None where it is not known.
        """
        mask: Pattern | Tensor | None = self.mask
        if self.causal:
            mask, past = causal(), 0
        return make_problem(
            self.q,
            self.k,
            self.v,
            mask=mask,
            bias=self.bias,
            scale=self.scale,
            dropout=self.dropout,
            q_offset=past,
        )


class Tap:
    """Someone who wants to see, or change, the attention calls of some modules."""

    def owns(self, module: nn.Module) -> bool:
        """Whether calls of this module are wanted."""
        raise NotImplementedError

    @property
    def acts(self) -> bool:
        """Whether it changes what it sees."""
        return False

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module that takes no hooks begins."""

    def leave(self, module: nn.Module, args: tuple[Any, ...], result: object) -> None:
        """It ends, with None where it failed."""

    def begin(self, module: nn.Module) -> None:
        """An attention call is about to run."""

    def gate(self, module: nn.Module, output: Tensor) -> Tensor:
        """Head outputs (batch, q_len, heads, v_head_dim) as they shall go on; `output` itself to leave them alone."""
        return output

    def end(self, module: nn.Module, call: KernelCall | OwnCall | Problem, output: Tensor) -> None:
        """The call has run, and every gate has acted on its output."""

    def made(self, module: nn.Module, output: Tensor) -> None:
        """Heads without scores have been made, and every gate has acted on them: no `end` follows."""

    def again(self, module: nn.Module) -> None:
        """The attention call about to be told is another layer of a module that has several in one call."""

    def fed(self, given: Tensor, weight: Tensor) -> None:
        """A linear map within a module that computes attention by itself is about to run."""

    def refuse(self, module: nn.Module, reason: str) -> None:
        """A module computed something like attention that cannot be told."""


class _Taps:
    """Everyone who listens, in the order in which they came."""

    def __init__(self) -> None:
        self.all: tuple[Tap, ...] = ()

    def of(self, module: nn.Module) -> tuple[Tap, ...]:
        """Those who want the calls of a module."""
        return tuple(tap for tap in self.all if tap.owns(module))


class _Running(threading.local):
    """What a thread is in.

    Args:
        inner: What looks at the innermost attention module, None within a kernel that has a seam of its own.
        blind: Whether a part of the model runs that is looked at in another way.
        beside: Whether a part runs once more, to be looked at.
    """

    def __init__(self) -> None:
        self.inner: list[object] = []
        self.blind = False
        self.beside = False


TAPS = _Taps()
RUNNING = _Running()


def gated(taps: tuple[Tap, ...], module: nn.Module, output: Tensor) -> Tensor:
    """Head outputs after every gate."""
    for tap in taps:
        output = tap.gate(module, output)
    return output


@contextmanager
def unseen() -> Generator[None, None, None]:
    """A kernel with a seam of its own runs: no lookout around it is told what it does."""
    RUNNING.inner.append(None)
    try:
        yield
    finally:
        RUNNING.inner.pop()
