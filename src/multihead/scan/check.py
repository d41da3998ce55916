"""What a scan is given, refused where it does not fit before anything is computed."""

from collections.abc import Mapping
from types import NoneType

import torch
from torch import Tensor

from multihead.error import MultiheadError, check_kinds, kind_and_text
from multihead.scan.state import DeltaState, LinearState


def check_inputs(q: object, k: object, v: object, *, same_length: bool = True) -> None:
    """Refuses queries, keys and values that do not belong together."""
    check_kinds({"q": q, "k": k, "v": v}, (Tensor,), "a tensor (batch, heads, length, width)")
    assert isinstance(q, Tensor)
    assert isinstance(k, Tensor)
    assert isinstance(v, Tensor)
    told = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1:3] == v.shape[1:3]
    if not fits or q.shape[3] != k.shape[3] or (same_length and q.shape[2] != k.shape[2]):
        raise MultiheadError(
            asked="q (batch, heads, length, head_dim), k (batch, kv_heads, length, head_dim), v (batch, kv_heads, "
            "length, v_head_dim)",
            arrived=told,
            remedy="pass one key and value for each query; another sequence is read by linear_attention_full"
            if fits and q.shape[3] == k.shape[3]
            else "pass tensors of these shapes; after a feature map q and k are of one width still",
        )
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise MultiheadError(
            asked="kv_heads that divide heads evenly",
            arrived=told,
            remedy="query head h reads kv head h // (heads // kv_heads)",
        )
    alike = q.dtype == k.dtype == v.dtype and q.device == k.device == v.device
    if not alike or not q.is_floating_point():
        raise MultiheadError(
            asked="q, k and v of one floating dtype, on one device",
            arrived=", ".join(f"{name} {x.dtype} on {x.device}" for name, x in (("q", q), ("k", k), ("v", v))),
            remedy="convert them: x.to(q)",
        )


def check_decay(log_decay: object, q: Tensor, k: Tensor) -> None:
    """Refuses decays of another shape, and those above 0."""
    check_kinds({"log_decay": log_decay}, (Tensor, NoneType), "a tensor of numbers up to 0, or None")
    if not isinstance(log_decay, Tensor):
        return
    batch, heads, length, head_dim = q.shape
    for count in (heads, k.shape[1]):
        if tuple(log_decay.shape) in ((count,), (batch, count, length), (batch, count, length, head_dim)):
            break
    else:
        raise MultiheadError(
            asked=f"log_decay (heads,), (batch, heads, length) or (batch, heads, length, head_dim): {heads} heads"
            + (f" or {k.shape[1]} kv heads" if heads != k.shape[1] else "")
            + f", batch {batch}, length {length}, head_dim {head_dim}",
            arrived=f"shape {tuple(log_decay.shape)}",
            remedy="expand it to one of these shapes",
        )
    _check_floating("log_decay", log_decay, q)
    if _looks(log_decay) and not bool((log_decay <= 0).all()):
        log_decay = log_decay.detach()
        _check_numbers("log_decay", log_decay)
        raise MultiheadError(
            asked="log_decay of at most 0: the logarithm of the share that is kept",
            arrived=f"log_decay from {float(log_decay.min()):.4g} to {float(log_decay.max()):.4g}",
            remedy="pass logsigmoid(x), or -exp(a) * softplus(x); for a share s in 0 to 1 log(s)",
        )


def check_beta(beta: object, q: Tensor, k: Tensor) -> None:
    """Refuses strengths of another shape or outside of 0 to 2."""
    check_kinds({"beta": beta}, (Tensor,), "a tensor (batch, heads, length) of numbers from 0 to 2")
    assert isinstance(beta, Tensor)
    batch, heads, length, _ = q.shape
    if tuple(beta.shape) not in ((batch, heads, length), (batch, k.shape[1], length)):
        raise MultiheadError(
            asked=f"beta (batch, heads, length) = ({batch}, {heads}, {length})"
            + (f" or ({batch}, {k.shape[1]}, {length})" if heads != k.shape[1] else ""),
            arrived=f"shape {tuple(beta.shape)}",
            remedy="pass one strength for each token and head",
        )
    _check_floating("beta", beta, q)
    if _looks(beta) and not bool(((beta >= 0) & (beta <= 2)).all()):
        beta = beta.detach()
        _check_numbers("beta", beta)
        raise MultiheadError(
            asked="beta from 0 (nothing is written) over 1 (the old value is replaced) to 2",
            arrived=f"beta from {float(beta.min()):.4g} to {float(beta.max()):.4g}",
            remedy="pass sigmoid(x), or 2 * sigmoid(x) to allow negative eigenvalues",
        )


def check_flags(q: Tensor, flags: Mapping[str, object], length: int) -> None:
    """Refuses `reset` and `valid` of another shape or kind."""
    check_kinds(flags, (Tensor, NoneType), "a boolean tensor (batch, length), or None")
    for name, flag in flags.items():
        if isinstance(flag, Tensor) and (flag.dtype != torch.bool or tuple(flag.shape) != (q.shape[0], length)):
            raise MultiheadError(
                asked=f"{name}: a boolean tensor (batch, length) = ({q.shape[0]}, {length})",
                arrived=f"{flag.dtype} of shape {tuple(flag.shape)}",
                remedy="True begins a document" if name == "reset" else "True = a real token: attention_mask.bool()",
            )
        if isinstance(flag, Tensor) and flag.device != q.device:
            raise _elsewhere(name, flag, q)


def check_state(
    state: object, kind: type[LinearState] | type[DeltaState], shape: tuple[int, ...], like: Tensor
) -> None:
    """Refuses the state of another scan, batch, layer or dtype."""
    if state is None:
        return
    if not isinstance(state, kind):
        raise MultiheadError(
            asked=f"state: a {kind.__name__}, as an earlier call gave it in .state",
            arrived=kind_and_text(state),
            remedy="pass made.state of the call with the tokens before these, or None at the start",
        )
    memory, wide = state.memory, torch.promote_types(like.dtype, torch.float32)
    if tuple(memory.shape) != shape or memory.dtype != wide or memory.device != like.device:
        raise MultiheadError(
            asked=f"a state (batch, heads, head_dim, v_head_dim) = {shape} of {wide} on {like.device}",
            arrived=f"{tuple(memory.shape)} of {memory.dtype} on {memory.device}",
            remedy="each layer needs its own; state.select(rows) takes rows of the batch",
        )
    mass = state.mass if isinstance(state, LinearState) else None
    if mass is not None and (mass.shape != memory.shape[:3] or mass.dtype != wide or mass.device != like.device):
        raise MultiheadError(
            asked=f"a state whose mass is {shape[:3]} of {wide}",
            arrived=f"{tuple(mass.shape)} of {mass.dtype}",
            remedy="pass the state as an earlier call gave it",
        )
    if _looks(memory) and bool(torch.isnan(memory.detach().sum())):
        raise MultiheadError(
            asked="a state of numbers",
            arrived="NaN in state.memory, or infinities of both signs",
            remedy="look for NaN in the tokens before these: from there on every output is NaN",
        )


def check_mass(state: LinearState | None, *, normalise: bool) -> None:
    """Refuses a state of outputs that are normalised for outputs that are not, and the other way round."""
    if state is not None and (state.mass is None) == normalise:
        raise MultiheadError(
            asked=f"a state of earlier tokens with normalise={normalise}",
            arrived=f"one with normalise={not normalise}: mass is {'None' if normalise else 'there'}",
            remedy="pass the same normalise with all tokens of a sequence",
        )


def _check_floating(name: str, given: Tensor, q: Tensor) -> None:
    if not given.is_floating_point():
        raise MultiheadError(
            asked=f"{name} as floating numbers", arrived=f"{given.dtype}", remedy=f"pass {name}.to(q.dtype)"
        )
    if given.device != q.device:
        raise _elsewhere(name, given, q)


def _elsewhere(name: str, given: Tensor, q: Tensor) -> MultiheadError:
    return MultiheadError(
        asked=f"{name} on the device of q, {q.device}", arrived=f"{given.device}", remedy=f"pass {name}.to(q.device)"
    )


def _check_numbers(name: str, given: Tensor) -> None:
    count = int(torch.isnan(given).sum())
    if count:
        raise MultiheadError(
            asked=f"{name} of numbers",
            arrived=f"NaN in {count:,} of {given.numel():,} places of {name}",
            remedy="look for NaN in the layer's input or in its weights, as after training that diverged",
        )


def _looks(given: Tensor) -> bool:
    """Whether numbers are looked at: elsewhere than on a CPU that would wait for the device, and a graph has none."""
    return given.device.type == "cpu" and not torch.compiler.is_compiling()
