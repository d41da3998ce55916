"""What an aligner is built of and called with, with the messages for what does not fit."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypeGuard

import torch
from torch import Tensor

from multihead.align.aligned import Memory
from multihead.error import MultiheadError, check_kinds


def check_sizes(sizes: Mapping[str, object], *, least: int = 1) -> None:
    """Refuses sizes that are no whole numbers of at least so much, by their names."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            raise MultiheadError(
                asked=f"{name}: a whole number of at least {least}",
                arrived=f"{name}={size!r}"[:200],
                remedy=f"for example {name}={max(least, 8)}",
            )


def check_number(name: str, value: object, *, above: float = -math.inf, least: float = -math.inf) -> None:
    """Refuses what is no finite number within bounds."""
    if is_number(value) and math.isfinite(value) and value > above and value >= least:
        return
    bound = f" above {above:g}" if above > -math.inf else f" of at least {least:g}" if least > -math.inf else ""
    raise MultiheadError(
        asked=f"{name}: a finite number{bound}", arrived=f"{name}={value!r}"[:200], remedy=f"for example {name}=1.0"
    )


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is one number; a truth value is none."""
    return isinstance(value, Real) and value is not True and value is not False


def check_values(values: Tensor, keep: Tensor | None, memory_dim: int, weight: Tensor | None) -> None:
    """Refuses a source of another kind, width, dtype or device, and a `keep` that is not its own."""
    check_kinds({"values": values}, (Tensor,), f"a tensor (batch, memory_len, {memory_dim})")
    check_kinds({"keep": keep}, (Tensor, type(None)), "a boolean tensor (batch, memory_len), or None")
    if values.ndim != 3 or values.shape[2] != memory_dim:
        raise MultiheadError(
            asked=f"values (batch, memory_len, {memory_dim})",
            arrived=f"values {tuple(values.shape)}",
            remedy="pass the source batch first, `values[None]` for one sequence; the width is set by memory_dim",
        )
    check_floating("values", values, weight)
    if keep is None:
        return
    if keep.dtype != torch.bool or keep.shape != values.shape[:2] or keep.device != values.device:
        raise MultiheadError(
            asked=f"keep: booleans (batch, memory_len) = {tuple(values.shape[:2])} on {values.device}, True = real",
            arrived=f"keep {tuple(keep.shape)}, {keep.dtype} on {keep.device}",
            remedy="for example keep = torch.arange(memory_len) < lengths[:, None]",
        )


def check_queries(given: Tensor, memory: Memory, query_dim: int, *, step: bool, weight: Tensor | None) -> None:
    """Refuses queries that do not go with the memory."""
    name, shape = ("query", "(batch, {})") if step else ("queries", "(batch, q_len, {})")
    shape = shape.format(query_dim)
    check_kinds({name: given}, (Tensor,), f"a tensor {shape}")
    check_kinds({"memory": memory}, (Memory,), "what aligner.remember(values, keep) gave")
    if given.ndim != (2 if step else 3) or given.shape[-1] != query_dim:
        other = "many queries go at once to aligner(queries, memory)" if step else "one goes to aligner.step(...)"
        raise MultiheadError(
            asked=f"{name} {shape}", arrived=f"{name} {tuple(given.shape)}", remedy=f"pass this shape; {other}"
        )
    if given.shape[0] != memory.batch:
        raise MultiheadError(
            asked=f"{name} for the {memory.batch} sources of the memory",
            arrived=f"{name} {tuple(given.shape)}",
            remedy="pass one for each source; for several of one source memory.select(rows) repeats it",
        )
    check_floating(name, given, weight)
    if given.device != memory.values.device:
        raise MultiheadError(
            asked=f"{name} on the device of the memory, {memory.values.device}",
            arrived=f"{name} on {given.device}",
            remedy=f"move it: {name}.to({str(memory.values.device)!r})",
        )


def check_made_here(memory: Memory, widths: Sequence[int], value_dim: int) -> None:
    """Refuses the memory of another aligner, as far as its sizes tell."""
    found = tuple(keys.shape[-1] for keys in memory.keys)
    if found != tuple(widths) or memory.values.shape[2] != value_dim:
        raise MultiheadError(
            asked=f"a memory of this aligner: values of width {value_dim}, keys of width {_listed(widths)}",
            arrived=f"values of width {memory.values.shape[2]}, keys of width {_listed(found)}",
            remedy="prepare it with this one: memory = aligner.remember(values, keep)",
        )


def check_state(state: object, kind: type, memory: Memory, tensors: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses the state of another aligner, or of another batch or source."""
    asked = f"the state of an earlier step with this memory: {kind.__name__}"
    if not isinstance(state, kind):
        raise MultiheadError(
            asked=asked,
            arrived=type(state).__name__,
            remedy="pass state=aligned.state of the step before, or None at the first",
        )
    for name, shape in tensors.items():
        found: Tensor = getattr(state, name)
        if tuple(found.shape) != shape or found.device != memory.values.device:
            raise MultiheadError(
                asked=f"{asked} with {name} {shape} on {memory.values.device}",
                arrived=f"{name} {tuple(found.shape)} on {found.device}",
                remedy="pass state=aligned.state of the step before; state.select(rows) goes with memory.select(rows)",
            )


def check_floating(name: str, given: Tensor, weight: Tensor | None) -> None:
    """Refuses another dtype or device than that of the weights, where no autocast mends it."""
    if not given.is_floating_point():
        raise MultiheadError(
            asked=f"{name} of floating-point numbers",
            arrived=f"{name} of {given.dtype}",
            remedy=f"pass {name}.float(), or embed token numbers first",
        )
    if weight is None or (given.device == weight.device and (given.dtype == weight.dtype or _casts(given))):
        return
    raise MultiheadError(
        asked=f"{name} in the dtype and on the device of the weights, {weight.dtype} on {weight.device}",
        arrived=f"{name} of {given.dtype} on {given.device}",
        remedy=f"pass `{name}.to(weight)`, move the module, or call it under torch.autocast",
    )


def _casts(tensor: Tensor) -> bool:
    kind = tensor.device.type
    return tensor.dtype != torch.float64 and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _listed(widths: Sequence[int]) -> str:
    return " and ".join(map(str, widths)) or "none"
