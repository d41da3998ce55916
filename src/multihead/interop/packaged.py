"""Packaged models, whatever form their weights have."""

from pathlib import Path
from typing import Any, Literal

import torch

from multihead.error import MultiheadError
from multihead.interop.dinov2 import build_dinov2
from multihead.interop.facts import picture_facts, reads_images, reads_sounds, sound_facts
from multihead.interop.load import LoadedModel, checked_device, load_model
from multihead.interop.quiet import quiet_transformers
from multihead.interop.weights import check_weights
from multihead.interop.whisper import build_whisper

Form = Literal["transformers", "dinov2-onnx", "whisper-ctranslate2"]


def load_packaged(
    folder: Path, *, weights: str, form: Form, device: str | torch.device = "cpu", tokenizer: Any = None
) -> LoadedModel:
    """Load a packaged model in float32, as a model of transformers.

    Args:
        folder: Where it lies.
        weights: Name of its weights file there.
        form: What the file is: `"transformers"`: what `load_model` takes; `"dinov2-onnx"`, `"whisper-ctranslate2"`:
            other programs' files of models that transformers has too, read by readers of this room.
        device: Where to put the model.
        tokenizer: Take this one instead of the model's.

    Raises:
        MultiheadError: A file is missing or damaged, or a package or the device is missing.

    Example:
        >>> load_packaged(folder, weights="vit.onnx", form="dinov2-onnx").pictures.grid  # doctest: +SKIP
        (16, 16)
    """
    if form == "transformers":
        return load_model(folder, device=device, tokenizer=tokenizer)
    device = checked_device(device)
    try:
        with quiet_transformers():
            if form == "dinov2-onnx":
                model = build_dinov2(folder / weights)
            else:
                model, tokenizer = build_whisper(folder)
    except ImportError as missing:
        raise MultiheadError(
            asked=f"to load {folder / weights}",
            arrived=str(missing),
            remedy="pip install 'multihead[hf]'",
        ) from missing
    check_weights(model)
    return LoadedModel(
        model=model.to(device),
        tokenizer=tokenizer,
        name=str(folder),
        pictures=picture_facts(model) if reads_images(model) else None,
        sounds=sound_facts(model) if reads_sounds(model) else None,
    )
