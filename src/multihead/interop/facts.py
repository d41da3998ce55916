"""What a model wants of a picture or a recording, as its own processor states it."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from torch import nn

from multihead.error import MultiheadError

Filter = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
# Numbers of Pillow's filters, which is how processors of transformers write them down.
_FILTERS: tuple[Filter, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_FILES = ("preprocessor_config.json", "processor_config.json")
_NESTED = ("image_processor", "feature_extractor", "audio_processor")

Triple = tuple[float, float, float]
_HALF: Triple = (0.5, 0.5, 0.5)
_IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP: tuple[Triple, Triple] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

_USUAL_SIZE = 224
# Where a processor resizes to a longer side than it keeps: 256 for 224, as in ImageNet's evaluation.
_MARGIN = 256 / 224


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFacts:
    """How a picture becomes what the model reads.

    Args:
        height: Pixels the model gets.
        width: Pixels the model gets.
        resize: What the picture is resized to: height and width, or one number for its shorter side (its shape is
            kept), or None to leave it. What is then larger than the model reads is cut off around the middle.
        filter: Filter of the resizing.
        scale: Factor of the 0..255 values.
        mean: Of red, green and blue; taken off after scaling.
        std: Of red, green and blue; divided by last.
        patch: Height and width of a patch in pixels.
        registers: Register tokens of the model, which stand between the CLS token and the patches.
    """

    height: int
    width: int
    resize: tuple[int, int] | int | None
    filter: Filter
    scale: float
    mean: Triple
    std: Triple
    patch: tuple[int, int]
    registers: int = 0

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.patch[0], self.width // self.patch[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundFacts:
    """How a recording becomes what the model reads.

    Args:
        kind: `"mel"`: log-mel frames (Whisper), padded to `longest`; `"samples"`: the samples (wav2vec 2.0, HuBERT).
        rate: Samples a second.
        longest: Samples in one chunk.
        stride: Samples from one place of the encoder to the next.
        bins: Mel bins, of `"mel"`.
        hop: Samples from one mel frame to the next, of `"mel"`.
        window: Samples in the window of one mel frame, of `"mel"`.
        normalise: Whether each chunk is brought to mean 0 and variance 1, of `"samples"`.
    """

    kind: Literal["mel", "samples"]
    rate: int
    longest: int
    stride: int
    bins: int = 80
    hop: int = 160
    window: int = 400
    normalise: bool = True


def picture_part(model: nn.Module) -> nn.Module | None:
    """The part of a model that reads pictures alone, cut into patches: itself, its `vision_model` or its encoder.

    Returns:
        The part, or None.

    Example:
        >>> picture_part(nn.Linear(2, 2)) is None
        True
    """
    takes = _parameters(model)
    if "pixel_values" in takes and not takes & {"input_ids", "decoder_input_ids"}:
        return model if _pair(getattr(getattr(model, "config", None), "patch_size", None)) else None
    for name in ("vision_model", "encoder"):
        part = getattr(model, name, None)
        if "pixel_values" in takes and isinstance(part, nn.Module) and part is not model:
            found = picture_part(part)
            if found is not None:
                return found
    return None


def reads_images(model: nn.Module) -> bool:
    """Whether pictures can be given to a model, or to its vision part alone."""
    return picture_part(model) is not None


def reads_sounds(model: nn.Module) -> bool:
    """Whether recordings can be given to a model: log-mel frames as of Whisper, or samples as of wav2vec 2.0."""
    return _sound_kind(model) is not None


def picture_facts(model: nn.Module, folder: str | Path | None = None) -> PictureFacts:
    """What a model of pictures wants, from the processor's file in its folder; else what its family usually gets.

    Args:
        model: A model that `reads_images`.
        folder: Where `preprocessor_config.json` may lie.

    Raises:
        MultiheadError: The model reads no pictures, has no patches of one size, or its processor's file is damaged.
    """
    part = picture_part(model)
    config = getattr(part, "config", None)
    patch, size = _pair(getattr(config, "patch_size", None)), _pair(getattr(config, "image_size", None))
    if patch is None:
        raise MultiheadError(
            asked="a model that reads pictures alone, cut into patches of one size",
            arrived=f"{type(model).__name__}, which takes {', '.join(sorted(_parameters(model))[:4]) or 'nothing'}",
            remedy="run it yourself on its own inputs: with mh.watch(model) as watched: model(...)",
        )
    kind = str(getattr(config, "model_type", ""))
    told = _stated(folder, nested=_NESTED[0]) if folder is not None else {}
    usual = _usual(kind, size or (_USUAL_SIZE, _USUAL_SIZE))
    resize, (height, width) = _sizes(told, usual) if told else (usual.resize, (usual.height, usual.width))
    plain = told.get("do_normalize") is False
    return PictureFacts(
        height=height,
        width=width,
        resize=resize,
        filter=_filter(told.get("resample"), usual.filter),
        scale=1.0 if told.get("do_rescale") is False else _number(told.get("rescale_factor"), 1 / 255),
        mean=(0.0, 0.0, 0.0) if plain else _triple(told.get("image_mean"), usual.mean),
        std=(1.0, 1.0, 1.0) if plain else _triple(told.get("image_std"), usual.std),
        patch=patch,
        registers=int(getattr(config, "num_register_tokens", 0) or 0),
    )


def sound_facts(model: nn.Module, folder: str | Path | None = None) -> SoundFacts:
    """What a model of sound wants, from the processor's file in its folder; else what its family usually gets.

    Args:
        model: A model that `reads_sounds`.
        folder: Where `preprocessor_config.json` may lie.

    Raises:
        MultiheadError: The model reads no sound in a form known here, or its processor's file is damaged.
    """
    kind, config = _sound_kind(model), getattr(model, "config", None)
    if kind is None or config is None:
        raise MultiheadError(
            asked="a model of sound: log-mel frames as of Whisper, or samples as of wav2vec 2.0 and HuBERT",
            arrived=f"{type(model).__name__}, which takes {', '.join(sorted(_parameters(model))[:4]) or 'nothing'}",
            remedy="run it yourself on its own inputs: with mh.watch(model) as watched: model(...)",
        )
    told = _stated(folder, nested=_NESTED[1]) if folder is not None else {}
    rate = int(_number(told.get("sampling_rate"), 16000.0))
    if kind == "samples":
        stride = 1
        for step in cast(Sequence[int], config.conv_stride):
            stride *= int(step)
        normalise = told.get("do_normalize") is not False
        return SoundFacts(kind=kind, rate=rate, longest=30 * rate, stride=stride, normalise=normalise)
    hop = int(_number(told.get("hop_length"), 160.0))
    return SoundFacts(
        kind=kind,
        rate=rate,
        # Two convolutions, the second of stride 2, in front of `max_source_positions` places.
        longest=2 * int(config.max_source_positions) * hop,
        stride=2 * hop,
        bins=int(config.num_mel_bins),
        hop=hop,
        window=int(_number(told.get("n_fft"), 400.0)),
    )


def _sound_kind(model: nn.Module) -> Literal["mel", "samples"] | None:
    takes, config = _parameters(model), getattr(model, "config", None)
    if "input_features" in takes and hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins"):
        return "mel"
    return "samples" if "input_values" in takes and hasattr(config, "conv_stride") else None


def _parameters(model: nn.Module) -> set[str]:
    return set(inspect.signature(model.forward).parameters)


def _usual(kind: str, size: tuple[int, int]) -> PictureFacts:
    """What the processors of published models of a family do."""
    mean, std = (_HALF, _HALF) if kind.startswith(("vit", "beit", "siglip", "data2vec")) else _IMAGENET
    if kind.startswith("clip"):
        mean, std = _CLIP
    if kind.startswith("dinov2"):
        # Its table of positions is for 518 pixels, its processor gives it 224.
        size = min(size[0], _USUAL_SIZE), min(size[1], _USUAL_SIZE)
    larger = round(size[0] * _MARGIN), round(size[1] * _MARGIN)
    resize: tuple[int, int] | int = size
    if kind.startswith("deit"):
        resize = larger
    elif kind.startswith(("dinov2", "clip")):
        resize = min(larger if kind.startswith("dinov2") else size)
    return PictureFacts(
        height=size[0],
        width=size[1],
        resize=resize,
        filter="bilinear" if kind.startswith(("vit", "beit", "data2vec", "dinov3")) else "bicubic",
        scale=1 / 255,
        mean=mean,
        std=std,
        patch=(1, 1),
    )


def _sizes(told: Mapping[str, Any], usual: PictureFacts) -> tuple[tuple[int, int] | int | None, tuple[int, int]]:
    """What to resize to, and what the model gets of it, from a processor's file."""
    crops = bool(told.get("do_center_crop", "crop_size" in told))
    kept = _pair(told.get("crop_size")) if crops else None
    size = told.get("size")
    resize: tuple[int, int] | int | None = _pair(size) or usual.resize
    if isinstance(size, Mapping) and isinstance(size.get("shortest_edge"), int):
        resize = int(size["shortest_edge"])
    elif isinstance(size, int) and crops:
        resize = size
    if told.get("do_resize") is False:
        resize = None
    # One number is the shorter side: only together with a crop it tells a size.
    return resize, kept or (_pair(resize) if "size" in told else None) or (usual.height, usual.width)


def _stated(folder: str | Path, *, nested: str) -> Mapping[str, Any]:
    """What the processor's file in a folder says; nothing if there is none."""
    for name in _FILES:
        file = Path(folder) / name
        if not file.is_file():
            continue
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as fault:
            raise _damaged(file, str(fault)) from fault
        if not isinstance(told, dict):
            raise _damaged(file, f"a {type(told).__name__}")
        inner = told.get(nested)
        return cast(Mapping[str, Any], inner if isinstance(inner, dict) else told)
    return {}


def _damaged(file: Path, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"the settings of the model's processor in {file}: a JSON object",
        arrived=arrived,
        remedy="get the file again, or take it away: then the usual settings of the family are taken",
    )


def _pair(given: object) -> tuple[int, int] | None:
    """Height and width, from one number, two, or a mapping."""
    if isinstance(given, Mapping):
        told = cast(Mapping[str, object], given)
        given = [told.get("height"), told.get("width")]
    if isinstance(given, int):
        given = [given, given]
    sides = list(cast(Sequence[object], given)) if isinstance(given, Sequence) and not isinstance(given, str) else []
    whole = [side for side in sides if isinstance(side, int) and side > 0]
    return (whole[0], whole[1]) if len(sides) == len(whole) == 2 else None


def _triple(given: object, usual: Triple) -> Triple:
    told = list(cast(Sequence[object], given)) if isinstance(given, Sequence) and not isinstance(given, str) else []
    numbers = [float(number) for number in told if isinstance(number, int | float)]
    return (numbers[0], numbers[1], numbers[2]) if len(told) == len(numbers) == 3 else usual


def _number(given: object, usual: float) -> float:
    return float(given) if isinstance(given, int | float) and given > 0 else usual


def _filter(given: object, usual: Filter) -> Filter:
    return _FILTERS[given] if isinstance(given, int) and 0 <= given < len(_FILTERS) else usual
