"""DINOv2 (Oquab et al. 2023, arXiv 2304.07193) from an ONNX file, as the model of transformers."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multihead.error import MultiheadError
from multihead.interop.onnx import OnnxFile, open_onnx

_BACKBONE = "backbone"
# Every published size of DINOv2 has heads of this width.
_HEAD_WIDTH = 64
_LAYER = re.compile(rf"{_BACKBONE}\.encoder\.layer\.(\d+)\.norm1\.weight")
# The file was exported from an older transformers, which had other names for the same parts.
_RENAMED = {
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
}


def build_dinov2(path: Path) -> nn.Module:
    """A `Dinov2Model` with the weights of an ONNX file whose graph holds one under the name `backbone`.

    The sizes are read off the shapes. An export keeps biases and norms by name; it turns the weights of linear layers
    round and calls them after nothing, so they are found by the operation that reads them; the table of positions comes
    in two parts, the CLS token's and the patches'.

    Args:
        path: The file.

    Raises:
        MultiheadError: The file is damaged, or holds no DINOv2.
    """
    import transformers

    with open_onnx(path) as file:
        state = _state(file)
    hidden = state["embeddings.cls_token"].shape[-1]
    patch = state["embeddings.patch_embeddings.projection.weight"].shape[-1]
    side = round((state["embeddings.position_embeddings"].shape[1] - 1) ** 0.5)
    config = transformers.Dinov2Config(
        hidden_size=hidden,
        num_hidden_layers=sum(key.endswith("norm1.weight") for key in state),
        num_attention_heads=hidden // _HEAD_WIDTH,
        mlp_ratio=state["encoder.layer.0.mlp.fc1.bias"].numel() // hidden,
        image_size=side * patch,
        patch_size=patch,
        # The token that stands for hidden patches in training is not in the file.
        use_mask_token=False,
    )
    return with_weights(transformers.Dinov2Model, config, state, asked=f"a DINOv2 in {path}")


def with_weights(kind: Any, config: Any, state: dict[str, Tensor], *, asked: str) -> nn.Module:
    """A model of transformers that holds given weights and no others: nothing is drawn at random.

    Args:
        kind: Its class.
        config: Its configuration.
        state: Every parameter by name; taken over, not copied.
        asked: What was wanted, for the error.

    Raises:
        MultiheadError: A parameter is missing, has no place, or has another shape.
    """
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model: nn.Module = kind(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    if wrong:
        shown = "; ".join(
            f"{name} {given.get(name, 'missing')} for {wanted.get(name, 'nothing')}" for name in wrong[:3]
        )
        raise MultiheadError(
            asked=f"{asked}: {len(wanted)} parameters of {kind.__name__}",
            arrived=f"{len(wrong)} that do not fit: {shown}",
            remedy="give the file of a complete model of this kind",
        )
    model.load_state_dict(state, assign=True)
    return model.eval()


def _state(file: OnnxFile) -> dict[str, Tensor]:
    """The weights under the names transformers gives them."""
    state: dict[str, Tensor] = {}
    for name in sorted(file.names):
        if name.startswith(f"{_BACKBONE}."):
            state[_name(name)] = file.tensor(name).float()
    for node in file.nodes:
        if node.kind == "MatMul" and node.name.startswith(f"/{_BACKBONE}/") and node.inputs[-1] in file.names:
            path = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            state[f"{_name(path)}.weight"] = file.tensor(node.inputs[-1]).float().T.contiguous()
    if not any(map(_LAYER.fullmatch, file.names)) or "embeddings.cls_token" not in state:
        raise _no_dinov2(file, f"{len(file.names)} weights, none of them {_BACKBONE}.encoder.layer.0.norm1.weight")
    if "embeddings.position_embeddings" not in state:
        state["embeddings.position_embeddings"] = _positions(file, state["embeddings.cls_token"].shape[-1])
    return state


def _name(name: str) -> str:
    name = name.removeprefix(f"{_BACKBONE}.")
    for old, new in _RENAMED.items():
        name = name.replace(old, new)
    return name


def _positions(file: OnnxFile, hidden: int) -> Tensor:
    """The two parts of the table: the only unnamed weights of shape (1, n, hidden), with n = 1 and n = side * side."""
    parts = [name for name in file.names if "::" in name and len(shape := file.shape(name)) == 3 and shape[0] == 1]
    parts = sorted((name for name in parts if file.shape(name)[2] == hidden), key=lambda name: file.shape(name)[1])
    counts = [file.shape(name)[1] for name in parts]
    if len(counts) != 2 or counts[0] != 1 or round(counts[1] ** 0.5) ** 2 != counts[1]:
        raise _no_dinov2(file, f"tables of positions with {counts} rows")
    return torch.cat([file.tensor(name).float() for name in parts], dim=1)


def _no_dinov2(file: OnnxFile, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"a DINOv2 named {_BACKBONE} in {file.path}",
        arrived=arrived,
        remedy="give the file of the package: multihead models --get dinov2",
    )
