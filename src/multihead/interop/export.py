"""Models with our attention as ONNX files: one Attention node for each call."""

import inspect
from collections.abc import Mapping, Sequence
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from multihead.attend.compiled import Call
from multihead.attend.spelling import read
from multihead.error import MultiheadError, check_kinds, kind_and_text
from multihead.pattern import Pattern
from multihead.pattern.algebra import And, Join, Not
from multihead.pattern.tokens import Match, Padding

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

_LIBRARY = torch.library.Library("multihead", "FRAGMENT")
_LIBRARY.define(
    "onnx_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale, float softcap) -> Tensor"
)
LEAST = 23  # the first opset with Attention
MOST = 25  # the last that onnxscript 0.7 can write


def export_onnx(
    model: nn.Module,
    inputs: Sequence[Any],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = LEAST,
) -> "ONNXProgram":
    """Writes a model as an ONNX file in which every attention call of this library is one `Attention` node.

    Grouped heads, scale, softcap, causal masks are attributes of the node; other patterns, boolean tensors and biases
    become its mask, computed in the graph for the lengths there are; sinks are one more key. What a node cannot be
    (`Sigmoid`, `Sparsemax`, `Entmax`) is refused. The file is written beside its place first and moved there whole.

    Kinds without such a node are written out: mixtures multiply each token with all experts, of which one is taken, and
    scans (`LinearAttention`, `GatedDeltaNet`) go in for one length. Keys chosen by content are refused.

    Args:
        model: In evaluation mode; a cache is no part of an exported graph.
        inputs: Examples of its inputs, in order.
        path: Where the file goes.
        names: Names of the inputs in the file; None takes those of `forward`.
        dynamic: For each input of `forward` that has sizes which change: the dimension and a name for it.
        opset: Version of the operators, 23 to 25.

    Returns:
        torch's program, which can be run and looked at.

    Raises:
        MultiheadError: The model is in training mode, inputs, names or sizes that are not those of its `forward`, an
            opset that is too old or not known yet, onnxscript is not installed, or a call cannot be a node.

    Example:
        >>> export_onnx(model.eval(), (x,), "model.onnx", dynamic={"x": {1: "length"}})  # doctest: +SKIP
    """
    target = _target(path)
    _check(model, opset)
    _check_inputs(model, inputs, names)
    _check_dynamic(dynamic, dict(zip(_parameters(model), inputs, strict=False)))
    shapes = None if dynamic is None else {name: _dims(sizes) for name, sizes in dynamic.items()}
    if shapes is not None:
        shapes = {name: shapes.get(name) for name in _parameters(model)[: len(inputs)]}
    with torch.no_grad():
        program = torch.export.export(model, tuple(inputs), dynamic_shapes=shapes)
        program = program.run_decompositions(
            {
                torch.ops.multihead.attention.default: _as_node,
                torch.ops.multihead.expert_products.default: _by_expert,
                torch.ops.aten.sort.stable: _sorted,
                torch.ops.aten.linalg_solve_triangular.default: _solved,
            }
        )
        made = torch.onnx.export(
            program,
            input_names=names,
            opset_version=opset,
            custom_translation_table={torch.ops.multihead.onnx_attention.default: _translate},
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    beside = target.with_name(f".{target.name}.part")
    try:
        made.save(beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return made


def _as_node(*given: Any) -> Tensor:
    """A call as one operator that becomes a node, and what computes its mask; runs while the graph is made."""
    call = Call(*given)
    if call.normaliser not in ("softmax", "softmax1"):
        raise _refused(f"{call.normaliser} as normaliser", "use a softmax, or export a traced softmax twin for serving")
    q_pos = torch.arange(call.q.shape[2]) + (call.q_offset or 0)
    k_pos = torch.arange(call.k.shape[2])
    causal = call.pattern == "causal" and call.bias is None and not call.q_offset and call.sinks is None
    causal = causal and call.normaliser == "softmax"
    mask = None if causal else _mask(call, q_pos, k_pos)
    k, v = call.k, call.v
    if call.sinks is not None or call.normaliser == "softmax1":
        k, v, mask = _with_sinks(call, mask)
    scale = call.q.shape[3] ** -0.5 if call.scale is None else call.scale
    return torch.ops.multihead.onnx_attention(call.q, k, v, mask, causal, scale, call.softcap or 0.0)


def _by_expert(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Rows, sorted by expert, each times its expert's weights: with those of all experts, of which one is taken.

    How many rows an expert gets is a number, which a graph does not know.
    """
    last = counts.cumsum(0)
    owner = (torch.arange(rows.shape[0], device=rows.device)[:, None] >= last).sum(1)
    every = (rows @ weight.flatten(0, 1).T).unflatten(1, weight.shape[:2])
    return every.gather(1, owner[:, None, None].expand(-1, 1, weight.shape[1]))[:, 0]


def _sorted(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Of equal numbers ONNX's TopK takes the one with the lower index first, as a stable sort does."""
    return torch.topk(x, x.shape[dim], dim=dim, largest=descending)


def _solved(system: Tensor, given: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The solution of a triangular system of a chunk, from the inverse of halves of it: ONNX has no such operator."""
    if upper or not left or not unitriangular:
        raise _refused("a triangular system", "solve it outside of the model")
    return _inverse(system) @ given


def _inverse(system: Tensor) -> Tensor:
    size = system.shape[-1]
    if size == 1:
        return torch.ones_like(system)
    half = size // 2
    first, last = _inverse(system[..., :half, :half]), _inverse(system[..., half:, half:])
    below = -last @ system[..., half:, :half] @ first
    above = torch.cat([first, first.new_zeros(*first.shape[:-1], size - half)], -1)
    return torch.cat([above, torch.cat([below, last], -1)], -2)


def _mask(call: Call, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
    """Mask and bias as one tensor of four dimensions: boolean, or numbers to add."""
    allowed = call.mask
    if call.pattern:
        allowed = _allowed(_pattern(call), q_pos, k_pos)
    bias = call.position_bias()
    if bias is None:
        return allowed
    scores = (bias if isinstance(bias, Tensor) else bias.scores(q_pos, k_pos)).to(call.q.dtype)
    return scores if allowed is None else torch.where(allowed, scores, -torch.inf)


def _pattern(call: Call) -> Pattern:
    if not all(type(number) is int for number in call.numbers):  # a length that is not known is another type
        raise _refused("a pattern with a number that changes with the lengths", "pass a boolean tensor as mask")
    return read(call.pattern, call.held, call.numbers)


def _allowed(pattern: Pattern, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """The law of a pattern on positions that are not known yet: nothing may look at numbers."""
    if isinstance(pattern, Join):
        parts = [_allowed(part, q_pos, k_pos) for part in pattern.parts]
        joined = torch.logical_and if isinstance(pattern, And) else torch.logical_or
        return reduce(joined, parts)
    if isinstance(pattern, Not):
        return ~_allowed(pattern.part, q_pos, k_pos)
    if isinstance(pattern, Padding):
        return pattern.keep.rows()[:, k_pos][:, None, None]
    if isinstance(pattern, Match) and pattern.form in ("document", "same_token"):
        return (pattern.ids.rows()[:, q_pos][:, :, None] == pattern.keys.rows()[:, k_pos][:, None])[:, None]
    if pattern.data:
        raise _refused(f"the pattern {pattern}", "pass it as a boolean tensor: mask=pattern.mask(q_len, kv_len)")
    return pattern.allows(q_pos, k_pos)


def _with_sinks(call: Call, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Sinks as one more key: its product with every query is 0, its bias the sink, its value 0."""
    batch, kv_heads, _, head_dim = call.k.shape
    k = torch.cat([call.k, call.k.new_zeros(batch, kv_heads, 1, head_dim)], 2)
    v = torch.cat([call.v, call.v.new_zeros(batch, kv_heads, 1, call.v.shape[3])], 2)
    sink = call.q.new_zeros(call.q.shape[1]) if call.sinks is None else call.sinks.to(call.q)
    if call.sinks is not None and call.normaliser == "softmax1":
        sink = torch.logaddexp(sink, torch.zeros_like(sink))
    scores = call.q.new_zeros(1, 1, call.q.shape[2], call.k.shape[2]) if mask is None else mask
    if scores.dtype == torch.bool:
        scores = torch.where(scores, 0.0, -torch.inf).to(call.q.dtype)
    scores = scores.expand(-1, sink.shape[0], call.q.shape[2], call.k.shape[2])
    last = sink[None, :, None, None].expand(scores.shape[0], -1, scores.shape[2], 1)
    return k, v, torch.cat([scores, last], 3)


def _fake(q: Tensor, k: Tensor, v: Tensor, *_rest: Any) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])).transpose(1, 2)


torch.library.register_fake("multihead::onnx_attention", _fake, lib=_LIBRARY)


def _translate(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, softcap: float) -> Any:  # noqa: FBT001 - the operator's arguments
    """The node; its other outputs are those of a cache."""
    from onnxscript import opset23

    made: Any = opset23.Attention(q, k, v, mask, is_causal=int(causal), scale=scale, softcap=softcap)
    out, _, _, _ = made
    return out


def _target(path: object) -> Path:
    """Where the file is to be, refused before the graph is made, which takes long."""
    target = Path(path) if isinstance(path, str | Path) and str(path) else None
    if target is None or target.is_dir() or not target.parent.is_dir():
        raise MultiheadError(
            asked="a file in a folder that there is, to write the model to",
            arrived=f"path={kind_and_text(path)}",
            remedy='pass its name, such as "model.onnx"; a folder is made by Path(path).parent.mkdir(parents=True)',
        )
    return target


def _check(model: nn.Module, opset: int) -> None:
    check_kinds({"model": model}, (nn.Module,), "a torch.nn.Module")
    check_kinds({"opset": opset}, (int,), f"a whole number, {LEAST} or later")
    if model.training:
        raise MultiheadError(
            asked="a model in evaluation mode to export", arrived="training mode", remedy="call model.eval() first"
        )
    if not LEAST <= opset <= MOST or isinstance(opset, bool):
        raise MultiheadError(
            asked=f"an opset with Attention: {LEAST} or later, up to {MOST}",
            arrived=f"opset={opset}"[:200],
            remedy=f"pass opset={LEAST}",
        )
    if find_spec("onnxscript") is None:
        raise MultiheadError(
            asked="to write an ONNX file", arrived="no module onnxscript", remedy="pip install 'multihead[onnx]'"
        )


def _check_inputs(model: nn.Module, inputs: object, names: object) -> None:
    """Refuses examples that are not what `forward` takes, and names that are not one for each."""
    taken = inspect.signature(model.forward).parameters.values()
    plain = [p.name for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in taken if p.name in plain and p.default is p.empty]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in taken)
    listed = isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes)
    count = len(cast(Sequence[object], inputs)) if listed else -1
    if count < max(len(needed), 1) or (count > len(plain) and not open_ended):
        raise MultiheadError(
            asked=f"inputs: an example of each input that forward needs ({', '.join(needed or plain) or 'none'})",
            arrived=f"{count} inputs" if listed else f"inputs={kind_and_text(inputs)}",
            remedy="pass them as a tuple, in order: (x,) for one",
        )
    if names is None:
        return
    told = list(cast(Sequence[object], names)) if isinstance(names, Sequence) and not isinstance(names, str) else []
    words = [name for name in told if isinstance(name, str) and name]
    if len(set(words)) != count or len(told) != count:
        raise MultiheadError(
            asked=f"names: {count} different words, one for each input",
            arrived=f"names={names!r}"[:200],
            remedy="pass a list of them, or None for those of forward",
        )


def _check_dynamic(dynamic: object, inputs: Mapping[str, object]) -> None:
    """Refuses sizes of inputs that there are not: they would be left fixed without a word."""
    if dynamic is None:
        return
    unknown = [name for name in dynamic if name not in inputs] if isinstance(dynamic, Mapping) else [dynamic]
    first = repr(next(iter(inputs), "x"))
    remedy = f"name an input as the model's forward does: dynamic={{{first}: " + '{1: "length"}}'
    if unknown:
        raise MultiheadError(
            asked=f"open sizes of the model's inputs {', '.join(inputs)}",
            arrived=f"dynamic for {', '.join(map(repr, unknown))}"[:200],
            remedy=remedy,
        )
    for name, sizes in cast(Mapping[str, object], dynamic).items():
        if not _are_sizes(sizes, inputs[name]):
            shape = f" of shape {tuple(given.shape)}" if isinstance(given := inputs[name], Tensor) else ""
            raise MultiheadError(
                asked=f"open sizes of {name}{shape}: a dimension, from 0, and a word for each",
                arrived=f"{name}: {sizes!r}"[:200],
                remedy=remedy,
            )


def _are_sizes(sizes: object, given: object) -> bool:
    if not isinstance(sizes, Mapping) or not isinstance(given, Tensor):
        return False
    told = cast(Mapping[object, object], sizes)
    places = all(type(place) is int and 0 <= place < given.ndim for place in told)
    return places and all(isinstance(name, str) and name.isidentifier() for name in told.values())


def _refused(what: str, remedy: str) -> MultiheadError:
    return MultiheadError(asked="attention as one node of an ONNX file", arrived=what, remedy=remedy)


def _dims(sizes: Mapping[int, str]) -> dict[int, Any]:
    return {place: torch.export.Dim(name) for place, name in sizes.items()}


def _parameters(model: nn.Module) -> list[str]:
    return list(inspect.signature(model.forward).parameters)
