"""Who is timed in `kernel.py`: PyTorch's attention, ours, and other libraries on the same numbers.

Each is made once, outside of the timing: layouts are turned, models compiled, masks built. What a library cannot do
raises `Unable` with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

PINS = ("onnxruntime==1.32.0", "onnx==1.23.2", "openvino==2026.4.1", "jax==0.10.2")


class Unable(Exception):
    """Why somebody does not take part."""


@dataclass(frozen=True)
class Contender:
    """A call to be timed, and how its result is read as (batch, heads, queries, dim) in float32."""

    run: Callable[[], Any]
    read: Callable[[Any], torch.Tensor] = torch.Tensor.float


def needed(name):
    try:
        return import_module(name)
    except ImportError:
        raise Unable(f"{name} is not installed") from None


def sdpa(case, q, k, v, threads):
    if case.window:
        mask = case.allowed()
        return Contender(lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask))
    grouped = case.heads != case.kv_heads
    return Contender(lambda: scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=grouped))


def ours(case, q, k, v, threads):
    from multihead import attention
    from multihead.pattern import causal, sliding_window

    mask = sliding_window(case.window) if case.window else causal() if case.causal else None
    return Contender(lambda: attention(q, k, v, mask=mask, backend="native"))


def eager(case, q, k, v, threads):
    """The formula in plain torch."""
    if case.queries * case.kv_len > 2**23 or case.window:
        raise Unable("stores every weight: not run at this size")
    if case.heads != case.kv_heads:
        k, v = (x.repeat_interleave(case.heads // case.kv_heads, 1) for x in (k, v))
    shut = torch.ones(case.queries, case.kv_len).triu(1).bool() if case.causal else None

    def run():
        scores = q @ k.transpose(-1, -2) * case.dim**-0.5
        return (scores if shut is None else scores.masked_fill_(shut, -torch.inf)).softmax(-1) @ v

    return Contender(run)


def flex(case, q, k, v, threads):
    """FlexAttention, compiled; the first call takes some 10 s."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def look(b, h, i, j):
        return (i >= j) & (i - j < case.window) if case.window else i >= j

    mask = create_block_mask(look, None, None, case.queries, case.kv_len, device="cpu") if case.causal else None
    compiled = torch.compile(flex_attention, dynamic=False)
    grouped = case.heads != case.kv_heads
    return Contender(lambda: compiled(q, k, v, block_mask=mask, enable_gqa=grouped))


def onnxruntime(case, q, k, v, threads):
    """Its own operators, MultiHeadAttention and, where heads are grouped or see a window, GroupQueryAttention."""
    ort, onnx = needed("onnxruntime"), needed("onnx")
    if q.dtype != torch.float32:
        raise Unable("its operators take float32 only on the CPU")
    grouped = case.heads != case.kv_heads or bool(case.window)
    rows = [x.transpose(1, 2).reshape(1, x.shape[2], -1).numpy() for x in (q, k, v)]
    feed = dict(zip(("q", "k", "v"), rows, strict=True))
    if grouped:
        feed |= {"last": np.array([case.kv_len - 1], np.int32), "total": np.array(case.kv_len, np.int32)}
    session = ort.InferenceSession(
        _onnx_model(onnx, case, feed, grouped), _ort_options(ort, threads), providers=["CPUExecutionProvider"]
    )

    def read(found):
        return torch.from_numpy(found[0]).view(1, case.queries, case.heads, case.dim).transpose(1, 2)

    return Contender(lambda: session.run(["out"], feed), read)


def _ort_options(ort, threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return options


def _onnx_model(onnx, case, feed, grouped):
    kinds = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.int32): onnx.TensorProto.INT32}
    inputs = [onnx.helper.make_tensor_value_info(n, kinds[x.dtype], x.shape) for n, x in feed.items()]
    outputs = [onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)]
    if grouped:
        told = {"num_heads": case.heads, "kv_num_heads": case.kv_heads}
        told |= {"local_window_size": case.window} if case.window else {}
        names = ["q", "k", "v", "", "", "last", "total"]
        node = onnx.helper.make_node(
            "GroupQueryAttention", names, ["out", "k_now", "v_now"], domain="com.microsoft", **told
        )
    else:
        told = {"num_heads": case.heads, "unidirectional": int(case.causal)}
        node = onnx.helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["out"], domain="com.microsoft", **told)
    graph = onnx.helper.make_graph([node], "attention", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def openvino(case, q, k, v, threads):
    """Its scaled_dot_product_attention; grouped keys are repeated for it outside of the timing."""
    ov = needed("openvino")
    ops = needed("openvino.opset13")
    if case.heads != case.kv_heads:
        k, v = (x.repeat_interleave(case.heads // case.kv_heads, 1).contiguous() for x in (k, v))
    short = q.dtype == torch.bfloat16
    kind = ov.Type.bf16 if short else ov.Type.f32
    # A tensor of OpenVINO borrows its memory: the arrays live as long as the call that is returned.
    arrays = [(x.view(torch.int16) if short else x).contiguous().numpy() for x in (q, k, v)]
    given = [ov.Tensor(x, list(x.shape), kind) for x in arrays]
    nodes = [ops.parameter(list(x.shape), kind) for x in given]
    mask = {}
    if case.window:
        arrays.append(case.allowed().numpy())
        given.append(ov.Tensor(arrays[-1], list(arrays[-1].shape), ov.Type.boolean))
        nodes.append(ops.parameter(list(given[-1].shape), ov.Type.boolean))
        mask["attention_mask"] = nodes[-1]
    node = ops.scaled_dot_product_attention(*nodes[:3], **mask, causal=case.causal and not case.window)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if short else "f32",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    request = ov.Core().compile_model(ov.Model([node], nodes), "CPU", settings).create_infer_request()
    for place, tensor in enumerate(given):
        request.set_input_tensor(place, tensor)

    def read(found):
        tensor = request.get_output_tensor(0)
        if short:
            bits = torch.from_numpy(np.frombuffer(tensor.data, np.int16).copy())
            return bits.view(torch.bfloat16).view(*tensor.shape).float()
        return torch.from_numpy(tensor.data.copy())

    def run(kept=arrays):
        request.infer()

    return Contender(run, read)


def jax(case, q, k, v, threads):
    """`jax.nn.dot_product_attention`, compiled, on (batch, length, heads, dim)."""
    jax, nn = needed("jax"), needed("jax.nn")
    if case.heads * case.queries * case.kv_len > 2**28:
        raise Unable("stores every weight: more than 9 GB at this size")
    kind = jax.numpy.bfloat16 if q.dtype == torch.bfloat16 else jax.numpy.float32
    given = [jax.numpy.asarray(x.transpose(1, 2).float().numpy(), dtype=kind) for x in (q, k, v)]
    told = {"is_causal": case.causal and not case.window}
    if case.window:
        told["local_window_size"] = (case.window - 1, 0)
    compiled = jax.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, **told))

    def read(found):
        return torch.from_numpy(np.array(found.astype(jax.numpy.float32))).transpose(1, 2)

    return Contender(lambda: compiled(*given).block_until_ready(), read)


PEERS = {"onnxruntime": onnxruntime, "openvino": openvino, "flex": flex, "jax": jax, "eager": eager}
EVERYBODY = {"sdpa": sdpa, "ours": ours} | PEERS
