"""One layer of `nn.MultiheadAttention`, weights and masks as torch has them, put to our kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from multihead.attend import make_problem
from multihead.error import MultiheadError
from multihead.interop.compat.check import check_like, check_tensors
from multihead.interop.compat.masks import TorchMasks
from multihead.layer import Options

Inputs = tuple[Tensor, Tensor, Tensor]
_NAMES = ("query", "key", "value")
Attend = Callable[[Inputs, Options], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projections:
    """The weights of one layer under torch's names, put to use.

    Args:
        heads: Number of heads.
        packed: (3 * width, width): q, k and v in one; None where they are apart.
        apart: One weight for each of q, k and v; None where they are packed.
        bias: (3 * width,), or None.
        out_weight: (width, width).
        out_bias: (width,), or None.
        bias_k: (1, 1, width): a key behind those of the input, or None.
        bias_v: Its value.
        add_zero: Whether a key and a value of zeros stand behind all others.
        static: Keys and values (batch * heads, kv_len, head_dim) in place of projected ones, each may be None.
    """

    heads: int
    packed: Tensor | None
    apart: tuple[Tensor, Tensor, Tensor] | None
    bias: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None
    bias_k: Tensor | None = None
    bias_v: Tensor | None = None
    add_zero: bool = False
    static: tuple[Tensor | None, Tensor | None] = (None, None)

    @property
    def extra(self) -> int:
        """How many keys stand behind those of the input."""
        return int(self.bias_k is not None) + int(self.add_zero)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the queries, keys and values it takes."""
        return (self.packed.shape[1],) * 3 if self.packed is not None else tuple(x.shape[1] for x in self.apart or ())

    def split(self, inputs: Inputs) -> Inputs:
        """Queries, keys and values (batch, heads, length, head_dim) of inputs (batch, length, width)."""
        query, key, value = inputs
        if self.packed is not None and query is key and key is value:
            made = linear(query, self.packed, self.bias).chunk(3, -1)
        else:
            weights = self.apart if self.packed is None else self.packed.chunk(3)
            biases = (None, None, None) if self.bias is None else self.bias.chunk(3)
            made = tuple(linear(*each) for each in zip(inputs, weights or (), biases, strict=True))
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in made)
        given = [x if x is None else x.unflatten(0, (-1, self.heads)) for x in self.static]
        k, v = (x if fixed is None else fixed for x, fixed in zip((k, v), given, strict=True))
        return q, self._longer(k, self.bias_k), self._longer(v, self.bias_v)

    def join(self, heads: Tensor) -> Tensor:
        """Heads (batch, heads, length, head_dim) as the output (batch, length, width)."""
        return linear(heads.transpose(1, 2).flatten(2), self.out_weight, self.out_bias)

    def _longer(self, rows: Tensor, learned: Tensor | None) -> Tensor:
        batch, heads, _, dim = rows.shape
        more = [rows]
        if learned is not None:
            more.append(learned.to(rows.dtype).view(1, heads, 1, dim).expand(batch, -1, -1, -1))
        if self.add_zero:
            more.append(rows.new_zeros(batch, heads, 1, dim))
        return torch.cat(more, 2) if len(more) > 1 else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of one call.

    Args:
        attend: Makes the heads of queries, keys and values.
        length_first: Whether inputs and output are (length, batch, width).
        weights: Whether the weights are wanted.
        average: Whether as their mean over the heads.
    """

    attend: Attend
    length_first: bool = True
    weights: bool = True
    average: bool = True


def run_layer(inputs: Inputs, layer: Projections, masks: TorchMasks, wanted: Wanted) -> tuple[Tensor, Tensor | None]:
    """Output and weights (or None) in the layout of the inputs, which may lack the batch.

    Raises:
        MultiheadError: Inputs or masks that do not belong together.
    """
    if any(getattr(x, "is_nested", False) for x in inputs):
        raise MultiheadError(
            asked="tensors of one length, with padding",
            arrived="nested tensors",
            remedy="set `encoder.use_nested_tensor = False` where nn.TransformerEncoder makes them",
        )
    check_tensors(dict(zip(_NAMES, inputs, strict=True)), "(length, batch, width), or (length, width)")
    masks.check_kinds(inputs[0])
    lone = inputs[0].ndim == 2
    _check_inputs(inputs, layer, length_first=wanted.length_first)
    # One tensor in three places stays one, so that it is projected once.
    turned = {id(x): x[None] if lone else x.transpose(0, 1) if wanted.length_first else x for x in inputs}
    query, key, value = (turned[id(x)] for x in inputs)
    qkv = layer.split((query, key, value))
    options = _options(qkv, masks.batched() if lone else masks, layer.extra)
    heads = wanted.attend(qkv, options)
    weights = None
    if wanted.weights:
        weights_of: Callable[..., Tensor] = _weights
        if torch.compiler.is_compiling():
            # Whoever looks at weights looks at numbers, which cuts a graph.
            weights_of = cast(Callable[..., Tensor], torch.compiler.disable(_weights))
        weights = weights_of(qkv, options)
        weights = weights.mean(1) if wanted.average else weights
    out = layer.join(heads)
    if lone:
        return out[0], None if weights is None else weights[0]
    return out.transpose(0, 1) if wanted.length_first else out, weights


def _options(qkv: Inputs, masks: TorchMasks, extra: int) -> Options:
    q, k, _ = qkv
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2] - extra)
    masks.check(sizes)
    mask, bias = masks.split(sizes, extra)
    return {"mask": mask, "bias": bias, "q_offset": 0}


def _weights(qkv: Inputs, options: Options) -> Tensor:
    """(batch, heads, q_len, kv_len), without dropout, in the dtype of the queries."""
    problem = make_problem(*qkv, **options)
    scores = problem.scores()
    return problem.normaliser.weigh(scores, problem.normaliser.settle(scores)).to(qkv[0].dtype)


def _check_inputs(inputs: Inputs, layer: Projections, *, length_first: bool) -> None:
    told = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(_NAMES, inputs, strict=True))
    axes = "length, batch, " if length_first else "batch, length, "
    dims = inputs[0].ndim
    fits = dims in (2, 3) and all(
        x.ndim == dims and x.shape[-1] == w for x, w in zip(inputs, layer.widths, strict=True)
    )
    if not fits:
        raise MultiheadError(
            asked=f"query, key and value ({axes}width) or (length, width) of the widths {layer.widths}",
            arrived=told,
            remedy="pass inputs of these widths; they are set by embed_dim, kdim and vdim",
        )
    check_like(dict(zip(_NAMES, inputs, strict=True)), layer.out_weight)
    batch = (1 if length_first else 0) if dims == 3 else -1
    query, key, value = inputs
    if key.shape[:-1] != value.shape[:-1] or (query.shape[batch] != key.shape[batch] and dims == 3):
        raise MultiheadError(
            asked=f"one batch size for query, key and value, and one length for key and value, as ({axes}width)",
            arrived=told,
            remedy=f"pass `x.transpose(0, 1)`, or build the module with batch_first={length_first}",
        )
