"""Models and tokenizers of transformers, from a folder or by name, loaded without running anyone's code."""

import contextlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multihead.error import MultiheadError
from multihead.interop.facts import PictureFacts, SoundFacts, picture_facts, reads_images, reads_sounds, sound_facts
from multihead.interop.files import check_config, check_files, check_gguf, has_tokenizer
from multihead.interop.quiet import quiet_transformers
from multihead.interop.weights import check_weights

# Without its files transformers 5 builds a tokenizer of special tokens alone, and reads every text as unknown.
_FEWEST_TOKENS = 2
_LAYER = re.compile(r"\.\d+\.")
_SHOWN = 3
_TOLD = 300
_CONVERT = (
    "from transformers import AutoModel; AutoModel.from_pretrained(NAME).save_pretrained(FOLDER) writes safetensors, "
    "once, where you trust the file; then load FOLDER"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel:
    """A model that is ready to run.

    Args:
        model: In evaluation mode, on the device asked for.
        tokenizer: Its tokenizer; None for models that read no tokens (ViT).
        name: As the caller named it.
        pictures: What it wants of a picture; None for models that read none.
        sounds: What it wants of a recording; None for models that read none.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    pictures: PictureFacts | None = None
    sounds: SoundFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where a model lies: a folder or a hub name, and the GGUF file in it if it is one."""

    name: str
    place: str
    gguf: str | None
    local: bool
    pickled: bool

    @property
    def options(self) -> dict[str, Any]:
        """What every `from_pretrained` gets."""
        return {"trust_remote_code": False} | ({"gguf_file": self.gguf} if self.gguf else {})


def load_model(
    source: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    tokenizer: Any = None,
) -> LoadedModel:
    """Load a transformers model with its tokenizer.

    The class is the one `config.architectures` names (causal, masked, sequence to sequence, encoder, ...), without one
    `AutoModelForCausalLM` for a GGUF file and `AutoModel` else. Attention is sdpa where the model supports it, else its
    eager code (softcaps and sinks need that). No code from the model's folder is run. Weights are read from safetensors
    or GGUF; a `pytorch_model.bin` is read from a local folder only, by torch's restricted reader, which builds tensors
    and calls nothing. With `HF_HUB_OFFLINE=1` no network is touched. Transformers' own messages are silenced meanwhile.

    Args:
        source: A folder, a `.gguf` file, a folder with one, or a name on the hub.
        dtype: Of the weights; None is float32 on a CPU and what is stored elsewhere.
        device: Where to put the model.
        tokenizer: Take this one instead of the model's.

    Returns:
        The model with its tokenizer.

    Raises:
        MultiheadError: There is no such model, or no tokenizer; `config.json` is no JSON; weights are missing, of
            another shape, pickled or not finite; a package or the device is missing.

    Example:
        >>> loaded = load_model("folder/with/a/model")  # doctest: +SKIP
        >>> loaded.model(**loaded.tokenizer("A text.", return_tensors="pt"))  # doctest: +SKIP
    """
    found = _find(source)
    if found.gguf:
        check_gguf(Path(found.place, found.gguf))
    elif found.local:
        check_config(Path(found.place, "config.json"))
    device = checked_device(device)
    if dtype is None and device.type == "cpu":
        dtype = torch.float32
    try:
        import transformers
    except ImportError as missing:
        raise _missing_package(found, str(missing)) from missing
    progress = contextlib.redirect_stderr(io.StringIO()) if found.gguf else contextlib.nullcontext()
    with quiet_transformers(), progress:
        kind, config = _class_of(transformers, found)
        if found.local and not found.gguf and not found.pickled:
            check_files(Path(found.place))
        model = _model(kind, found, {"dtype": dtype or "auto"} | ({"config": config} if config else {}))
        tokenizer = tokenizer if tokenizer is not None else _tokenizer(transformers, found, model)
        folder = _processor(transformers, found)
    check_weights(model)
    return LoadedModel(
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        name=found.name,
        pictures=picture_facts(model, folder) if reads_images(model) else None,
        sounds=sound_facts(model, folder) if reads_sounds(model) else None,
    )


def _processor(transformers: Any, found: _Source) -> Path | None:
    """The folder that may hold the settings of the model's processor, fetched where the model is on the hub."""
    if found.local:
        return Path(found.place)
    file = transformers.utils.cached_file(
        found.place,
        "preprocessor_config.json",
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if file is None else Path(file).parent


def _find(source: str | Path) -> _Source:
    path = Path(source).expanduser()
    name = str(source)
    if path.is_file() and path.suffix == ".gguf":
        return _Source(name=name, place=str(path.parent), gguf=path.name, local=True, pickled=False)
    if not path.is_dir():
        if path.exists() or isinstance(source, Path) or name.startswith((".", "/", "~")):
            raise MultiheadError(
                asked="a folder with a model, a .gguf file, or a name on the hub",
                arrived=f"{name}: {'a file of another kind' if path.exists() else 'no such folder'}",
                remedy="give the folder that holds config.json",
            )
        return _Source(name=name, place=name, gguf=None, local=False, pickled=False)
    if (path / "config.json").is_file():
        safe, pickled = any(path.glob("*.safetensors")), any(path.glob("pytorch_model*.bin"))
        if not (safe or pickled):
            raise MultiheadError(
                asked=f"a model in {name}",
                arrived="config.json, but no weights (model*.safetensors)",
                remedy="complete the folder: model.save_pretrained(folder) writes both",
            )
        return _Source(name=name, place=str(path), gguf=None, local=True, pickled=pickled and not safe)
    ggufs = sorted(file.name for file in path.glob("*.gguf"))
    if len(ggufs) == 1:
        return _Source(name=name, place=str(path), gguf=ggufs[0], local=True, pickled=False)
    raise MultiheadError(
        asked=f"a model in {name}",
        arrived=f"{len(ggufs)} .gguf files: {', '.join(ggufs)}" if ggufs else "neither config.json nor a .gguf file",
        remedy="name the .gguf file itself" if ggufs else "give the folder that model.save_pretrained(folder) wrote",
    )


def checked_device(device: str | torch.device) -> torch.device:
    """The device, after one number was put on it.

    Raises:
        MultiheadError: There is no such device here.
    """
    try:
        checked = torch.device(device)
        float(torch.zeros(1, device=checked))
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as fault:
        raise MultiheadError(
            asked=f"the device {device}",
            arrived=str(fault).splitlines()[0],
            remedy="pass device='cpu', or one this build of torch has",
        ) from fault
    return checked


def _class_of(transformers: Any, found: _Source) -> tuple[Any, Any]:
    """The class to load, and its config; a GGUF file's is read with its weights."""
    if found.gguf:
        return transformers.AutoModelForCausalLM, None
    config = _told(found, lambda: transformers.AutoConfig.from_pretrained(found.place, **found.options))
    for architecture in config.architectures or ():
        kind = getattr(transformers, str(architecture), None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind, config
    return transformers.AutoModel, config


def _model(kind: Any, found: _Source, options: Mapping[str, Any]) -> nn.Module:
    stored = {} if found.gguf else {"use_safetensors": not found.pickled}

    def load() -> nn.Module:
        model, told = kind.from_pretrained(
            found.place,
            output_loading_info=True,
            weights_only=True,
            # So that it tells which; they are refused all the same.
            ignore_mismatched_sizes=True,
            **found.options,
            **stored,
            **options,
        )
        _check_shapes(model, found, told)
        _check_complete(model, found, told)
        return model

    method = _quantised(options.get("config"))
    try:
        return _told(found, load)
    except MultiheadError as fault:
        if not method:
            raise
        raise MultiheadError(
            asked=f"the weights of {found.name} as they were trained",
            arrived=f"weights quantised with {method}, which could not be loaded here: {fault.arrived}",
            remedy="give the model it was made from (float16 or bfloat16), or load this one with the package its "
            "authors name and pass it to multihead.checkup(model, tokenizer)",
        ) from fault


def _quantised(config: object) -> str:
    """How the weights of a model are quantised, as its config says; empty if they are not."""
    told = getattr(config, "quantization_config", None)
    if told is None:
        return ""
    stated: Mapping[str, object] = told if isinstance(told, Mapping) else vars(told)
    method = stated.get("quant_method", "a method it does not name")
    return str(getattr(method, "value", method))


def _check_shapes(model: nn.Module, found: _Source, told: Mapping[str, Any]) -> None:
    """Refuse weights of other shapes than the model's: they would be random numbers."""
    # Sorted as text: some keys are the same but for their shapes.
    other = sorted(told["mismatched_keys"], key=str)
    if not other:
        return
    shown = ", ".join(
        f"{key}: {_by(stored)} in the file, {_by(due)} by the config" for key, stored, due in other[:_SHOWN]
    )
    more = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
    raise MultiheadError(
        asked=f"the weights of {type(model).__name__} in {found.name}",
        arrived=f"{shown}{more}",
        remedy="config.json and the weights are of different models, or one was changed: get both from the same place",
    )


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _check_complete(model: nn.Module, found: _Source, told: Mapping[str, Any]) -> None:
    """Refuse a model whose parts would be random numbers, or whose file holds layers that would be left out.

    Only what stands on top of the layers may be new: a head, a pooler.
    """
    base = str(getattr(model, "base_model_prefix", ""))
    headed = bool(base) and isinstance(getattr(model, base, None), nn.Module)
    absent = sorted(
        key
        for key in told["missing_keys"]
        if "pooler" not in key and not key.startswith("lm_head.") and (not headed or key.startswith(f"{base}."))
    )
    surplus = sorted(key for key in told["unexpected_keys"] if _LAYER.search(key))
    if not absent and not surplus:
        return
    arrived = [f"{len(absent)} parameters are not there: {', '.join(absent[:_SHOWN])}"] * bool(absent)
    arrived += [f"{len(surplus)} parameters of layers have no place: {', '.join(surplus[:_SHOWN])}"] * bool(surplus)
    raise MultiheadError(
        asked=f"the weights of {type(model).__name__} in {found.name}",
        arrived="; ".join(arrived),
        remedy="give the folder of a complete model: config.json and weights of the same architecture",
    )


def _tokenizer(transformers: Any, found: _Source, model: nn.Module) -> Any:
    # Models of pictures and sound may do without one.
    needed = getattr(model, "main_input_name", "input_ids") == "input_ids"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(found.place, **found.options)
    # What it raises without its files depends on the family: OSError, ValueError, TypeError, KeyError, ...
    except Exception as fault:
        if not needed:
            return None
        raise _no_tokenizer(found, " ".join(str(fault).split())[:_TOLD] or type(fault).__name__) from fault
    plain = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    if len(plain) < _FEWEST_TOKENS:
        if not needed:
            return None
        raise _no_tokenizer(found, f"{type(tokenizer).__name__} with {len(plain)} tokens besides the special ones")
    return tokenizer


def _told(found: _Source, load: Callable[[], Any]) -> Any:
    """Run a loader of transformers; what it cannot load is told in our words."""
    try:
        return load()
    except ImportError as missing:
        raise _missing_package(found, str(missing)) from missing
    except MultiheadError:
        raise
    # A damaged or foreign file can raise anything, from OSError to struct.error.
    except Exception as fault:
        text = str(fault)
        if "Weights only load failed" in text:
            raise MultiheadError(
                asked=f"the weights of {found.name}",
                arrived="a pickle with more than tensors in it, which reading would run",
                remedy=f"do not open it unless you trust it; {_CONVERT}",
            ) from fault
        if type(fault).__name__ == "SafetensorError":
            raise MultiheadError(
                asked=f"the weights of {found.name}",
                arrived=_first_line(fault),
                remedy="the file is damaged or cut off: get it again",
            ) from fault
        if "safetensors" in text and not found.gguf:
            raise MultiheadError(
                asked=f"the weights of {found.name} as safetensors",
                arrived=_first_line(fault),
                remedy=f"a .bin is a pickle, which can run code, and is not fetched; {_CONVERT}",
            ) from fault
        raise MultiheadError(
            asked=f"the model {found.name}",
            arrived=f"{type(fault).__name__}: {_first_line(fault)}",
            remedy="check the folder: config.json must name a model_type of transformers"
            if found.local
            else "check the name and the connection (HF_HUB_OFFLINE=1 allows only what was fetched before), or give a "
            "folder; `multihead models` lists models that come in a package",
        ) from fault


def _no_tokenizer(found: _Source, arrived: str) -> MultiheadError:
    # What transformers says of files that are not there speaks of other things.
    absent = found.local and not found.gguf and not has_tokenizer(Path(found.place))
    return MultiheadError(
        asked=f"the tokenizer of {found.name}",
        arrived="the folder has no tokenizer files (tokenizer.json, vocab.txt, ...)" if absent else arrived,
        remedy="put tokenizer.json beside the model (tokenizer.save_pretrained(folder) writes it), or, in Python, give "
        "a tokenizer: mh.load_model(folder, tokenizer=mine)",
    )


def _missing_package(found: _Source, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"to load {found.name}",
        arrived=arrived.strip().splitlines()[0] if arrived.strip() else "a package is missing",
        remedy="pip install 'multihead[hf]' (transformers, and gguf and accelerate for .gguf files)",
    )


def _first_line(fault: BaseException) -> str:
    lines = str(fault).strip().splitlines()
    return lines[0] if lines else type(fault).__name__
