"""The compiled kernel as an operator of torch, on tensors alone: `torch.ops.multihead.native_forward`.

It checks everything that its tensors say; what only their numbers say (classes and places of tiles) the kernel checks
before it computes. It changes nothing it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from multihead.error import MultiheadError
from multihead.native.abi import CProblem, CTensor
from multihead.native.library import Library, load, why_none
from multihead.native.pack import pack_problem

_OPERATORS = torch.library.Library("multihead", "FRAGMENT")
_OPERATORS.define(
    "native_forward(Tensor q, Tensor k, Tensor v, Tensor?[] mask, Tensor?[] bias, Tensor? sinks, float scale, "
    "float softcap, SymInt q_offset, SymInt table_first, int threads, int variant) -> (Tensor out, Tensor lse)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _forward(  # noqa: PLR0913 - everything of one call, as the kernel takes it
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Sequence[Tensor | None],
    bias: Sequence[Tensor | None],
    sinks: Tensor | None,
    scale: float,
    softcap: float,
    q_offset: int,
    table_first: int,
    threads: int,
    variant: int,
) -> tuple[Tensor, Tensor]:
    """`softmax(mask(softcap(scale * q @ k.T) + bias)) @ v` and the log-sum-exp of each row, on the CPU.

    Args:
        q: Queries (batch, heads, q_len, head_dim); columns must follow one another, all other strides are free. So for
            k and v.
        k: Keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim), of the dtype of q and k: float32, bfloat16 or float16.
        mask: What pairs must satisfy, each part or None, or nothing at all: window (batch | 1, heads | 1, 2) int64,
            q_ids (batch | 1, q_len) int32, k_ids (batch | 1, kv_len) int32, keep (batch | 1, kv_len) bool, dense
            (batch | 1, heads | 1, q_len | 1, kv_len | 1) bool, tile_class (batch | 1, heads | 1, q_tiles, k_tiles)
            int8, tile_index of the same shape int32, tile_bits (distinct, 64) int64. `csrc/multihead.h` says what each
            means.
        bias: What is added to the scores, each part or None, or nothing at all: slopes (heads,) float32, table
            (heads, length) float32, dense (batch | 1, heads | 1, q_len | 1, kv_len | 1) float32, bfloat16 or float16.
        sinks: One logit a head that takes up weight and gives nothing, float32.
        scale: Factor of the products.
        softcap: c in c * tanh(scaled / c); 0 is no cap.
        q_offset: Position of the first query, where the first key has position 0.
        table_first: Distance of the first column of the table.
        threads: At most so many; 0 is as many as torch has. The result is the same for any number.
        variant: One of `Variant`; 0 is the best one for this processor.

    Returns:
        Output (batch, heads, q_len, v_head_dim) in the dtype of q, and log-sum-exp (batch, heads, q_len) in float32: 0
        and -inf in rows without a key.

    Raises:
        MultiheadError: If the arguments do not fit together, a gradient is asked for, or there is no compiled kernel.
    """
    library = _library()
    given = (scale, softcap, q_offset, table_first)
    problem = pack_problem((q, k, v), mask, bias, sinks, given, (variant, library.threads(threads)))
    out, lse = _blank(q, v)
    library.forward(problem, _tensor(out), lse.data_ptr() or None)
    return out, lse


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A call that is written down for the kernel but for the addresses of q, k and v, and checked.

    Args:
        form: The struct.
        held: Tensors it points to.
        size: Of the output.
        steps: Its strides.
        threads: At most so many, or 0 for as many as torch has.
    """

    form: bytes
    held: Sequence[Tensor | None]
    size: tuple[int, int, int, int]
    steps: tuple[int, int, int, int]
    threads: int

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The output of `native_forward` for other tensors of the same dtypes, sizes and strides.

        Args:
            q: Queries.
            k: Keys.
            v: Values.
        """
        library = _library()
        problem = CProblem.from_buffer_copy(self.form)
        problem.threads = library.threads(self.threads)
        problem.q.data, problem.k.data, problem.v.data = q.data_ptr(), k.data_ptr(), v.data_ptr()
        out = q.new_empty_strided(self.size, self.steps)
        library.forward(problem, CTensor(out.data_ptr(), *self.steps[:3]), None)
        return out


def prepare(
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Sequence[Tensor | None],
    numbers: tuple[float, float, int],
    how: tuple[int, int],
) -> Prepared:
    """A call without bias and sinks, prepared.

    Args:
        tensors: q, k and v, whose columns follow one another.
        mask: See `native_forward`.
        numbers: scale, softcap, q_offset.
        how: Variant and threads.

    Raises:
        MultiheadError: If the arguments do not fit together.
    """
    problem = pack_problem(tensors, mask, [], None, (*numbers, 0), how)
    problem.q.data = problem.k.data = problem.v.data = None
    size, steps = _laid_out(tensors[0], tensors[2])
    return Prepared(form=bytes(problem), held=tuple(mask), size=size, steps=steps, threads=how[1])


def _library() -> Library:
    library = load()
    if library is None:
        raise MultiheadError(
            asked="attention by the compiled kernel",
            arrived=str(why_none()),
            remedy='call attention with backend="auto", which runs without it',
        )
    return library


def _blank(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Where results go."""
    size, steps = _laid_out(q, v)
    return q.new_empty_strided(size, steps), q.new_empty(size[:3], dtype=torch.float32)


def _laid_out(q: Tensor, v: Tensor) -> tuple[Any, Any]:
    """Size and strides of an output: joining the heads of a token then needs no copy."""
    (batch, heads, q_len, _), width = q.shape, v.shape[3]
    return (batch, heads, q_len, width), (q_len * heads * width, width, heads * width, 1)


def _tensor(x: Tensor) -> CTensor:
    return CTensor(x.data_ptr(), *x.stride()[:3])


def _fake(q: Tensor, k: Tensor, v: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    """Shapes, dtypes and strides of the results."""
    return _blank(q, v)


def _without_gradients(*given: Any) -> tuple[Tensor, Tensor]:
    """The operator where torch would record it: refused, before anything is computed that would have no gradient."""
    listed = [part for one in given for part in (one if isinstance(one, list | tuple) else [one])]
    if torch.is_grad_enabled() and any(isinstance(part, Tensor) and part.requires_grad for part in listed):
        raise MultiheadError(
            asked="gradients through torch.ops.multihead.native_forward",
            arrived="tensors that require a gradient",
            remedy='call it under torch.no_grad(), or multihead.attention with backend="auto", which finds one that '
            "has gradients",
        )
    return unrecorded(*given)


def watched(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether something of torch has to see an operator on these tensors: then it must not be called by itself.

    Args:
        q: Queries: of a class of their own, or numbers that are not what lies in memory.
        k: Keys.
        v: Values.
    """
    if not (type(q) is type(k) is type(v) is Tensor) or q.is_neg() or k.is_neg() or v.is_neg():
        return True
    return torch._C._len_torch_dispatch_stack() > 0  # pyright: ignore[reportPrivateUsage] - it has no public name


def unrecorded(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """The operator for tensors that no gradient is asked of. Where nothing of torch looks on, it is called by itself.

    That spares half of the time a call takes beside the kernel, which counts where text is written a token at a time.
    """
    if not watched(q, k, v):
        return _forward(q, k, v, *others)
    with torch._C._AutoDispatchBelowAutograd():  # pyright: ignore[reportPrivateUsage] - it has no public name
        return native_forward(q, k, v, *others)


_OPERATORS.impl("native_forward", _forward, "CPU")
_OPERATORS.impl("native_forward", _without_gradients, "Autograd")
torch.library.register_fake("multihead::native_forward", _fake, lib=_OPERATORS)
native_forward = torch.ops.multihead.native_forward.default
