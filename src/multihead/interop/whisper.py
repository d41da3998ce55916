"""Whisper (Radford et al. 2022, arXiv 2212.04356) from a CTranslate2 folder, as the model of transformers."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from multihead.error import MultiheadError
from multihead.interop.ctranslate2 import CTranslate2File, open_ctranslate2
from multihead.interop.dinov2 import with_weights

_SPECIFICATION = "WhisperSpec"
_START, _END, _NO_TIMES = "<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"


def build_whisper(folder: Path) -> tuple[nn.Module, Any]:
    """A `WhisperForConditionalGeneration` with the weights of a CTranslate2 folder, and its tokenizer.

    Args:
        folder: Holds `model.bin`, `config.json` and `tokenizer.json`.

    Returns:
        The model, in float32, with the tokens it may not write in its `generation_config`; and the tokenizer.

    Raises:
        MultiheadError: A file is missing or damaged, or the model is no Whisper, or is quantised.
    """
    import transformers

    with open_ctranslate2(folder / "model.bin") as file:
        if file.specification != _SPECIFICATION:
            raise MultiheadError(
                asked=f"a Whisper in {file.path}",
                arrived=f"a model of the kind {file.specification!r}",
                remedy="give the folder of a Whisper that ctranslate2 converted",
            )
        state, sizes = _state(file), _sizes(file)
    tokenizer = _tokenizer(transformers, folder)
    start, end, no_times = (int(tokenizer.convert_tokens_to_ids(token)) for token in (_START, _END, _NO_TIMES))
    config = transformers.WhisperConfig(
        **sizes,
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model: Any = with_weights(
        transformers.WhisperForConditionalGeneration, config, state, asked=f"a Whisper in {folder}"
    )
    # The last layer is the table of embeddings again.
    model.tie_weights()
    told = _settings(folder)
    model.generation_config.no_timestamps_token_id = no_times
    model.generation_config.decoder_start_token_id = start
    model.generation_config.suppress_tokens = told["suppress_ids"]
    model.generation_config.begin_suppress_tokens = told["suppress_ids_begin"]
    return model, tokenizer


def _sizes(file: CTranslate2File) -> dict[str, Any]:
    """The sizes of the model, read off the shapes."""
    vocabulary, width = _shape(file, "decoder/embeddings/weight", 2)
    found: dict[str, Any] = {
        "vocab_size": vocabulary,
        "d_model": width,
        "num_mel_bins": _shape(file, "encoder/conv1/weight", 3)[1],
    }
    found["max_source_positions"] = _shape(file, "encoder/position_encodings/encodings", 2)[0]
    found["max_target_positions"] = _shape(file, "decoder/position_encodings/encodings", 2)[0]
    for side in ("encoder", "decoder"):
        found[f"{side}_layers"] = _layers(file, side)
        found[f"{side}_attention_heads"] = int(file.tensor(f"{side}/num_heads"))
        found[f"{side}_ffn_dim"] = _shape(file, f"{side}/layer_0/ffn/linear_0/weight", 2)[0]
    return found


def _layers(file: CTranslate2File, side: str) -> int:
    places = {name.split("/")[1] for name in file.names if name.startswith(f"{side}/layer_")}
    return len(places - {"layer_norm"})


def _shape(file: CTranslate2File, name: str, rank: int) -> tuple[int, ...]:
    tensor = file.tensor(name)
    if tensor.ndim != rank:
        raise MultiheadError(
            asked=f"{name} of {rank} dimensions in {file.path}",
            arrived=f"shape {tuple(tensor.shape)}",
            remedy="give the folder of a Whisper that ctranslate2 converted",
        )
    return tuple(tensor.shape)


def _state(file: CTranslate2File) -> dict[str, Tensor]:
    """Every weight under the name transformers gives it, in float32."""
    state: dict[str, Tensor] = {}
    for side in ("encoder", "decoder"):
        stack = f"model.{side}"
        state[f"{stack}.embed_positions.weight"] = _numbers(file, f"{side}/position_encodings/encodings")
        _norm(state, file, f"{stack}.layer_norm", f"{side}/layer_norm")
        for layer in range(_layers(file, side)):
            _layer(state, file, f"{stack}.layers.{layer}", f"{side}/layer_{layer}")
    for place in (1, 2):
        _linear(state, file, f"model.encoder.conv{place}", f"encoder/conv{place}")
    state["model.decoder.embed_tokens.weight"] = _numbers(file, "decoder/embeddings/weight")
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    return state


def _layer(state: dict[str, Tensor], file: CTranslate2File, ours: str, theirs: str) -> None:
    _attention(state, file, f"{ours}.self_attn", f"{theirs}/self_attention", parts="qkv")
    if f"{theirs}/attention/linear_0/weight" in file.names:
        _attention(state, file, f"{ours}.encoder_attn", f"{theirs}/attention", parts="kv")
    _norm(state, file, f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")
    for place in (0, 1):
        _linear(state, file, f"{ours}.fc{place + 1}", f"{theirs}/ffn/linear_{place}")


def _attention(state: dict[str, Tensor], file: CTranslate2File, ours: str, theirs: str, *, parts: str) -> None:
    """One attention: queries, keys and values lie in one matrix, in cross-attention keys and values."""
    _norm(state, file, f"{ours}_layer_norm", f"{theirs}/layer_norm")
    if parts == "kv":
        _linear(state, file, f"{ours}.q_proj", f"{theirs}/linear_0")
    fused = f"{theirs}/linear_{int(parts == 'kv')}"
    weights = _numbers(file, f"{fused}/weight").chunk(len(parts))
    biases = _numbers(file, f"{fused}/bias").chunk(len(parts))
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        state[f"{ours}.{part}_proj.weight"] = weight.contiguous()
        if part != "k":
            # Whisper's keys have no bias: the file holds zeros there.
            state[f"{ours}.{part}_proj.bias"] = bias.contiguous()
    _linear(state, file, f"{ours}.out_proj", f"{theirs}/linear_{1 + int(parts == 'kv')}")


def _norm(state: dict[str, Tensor], file: CTranslate2File, ours: str, theirs: str) -> None:
    state[f"{ours}.weight"], state[f"{ours}.bias"] = (_numbers(file, f"{theirs}/{part}") for part in ("gamma", "beta"))


def _linear(state: dict[str, Tensor], file: CTranslate2File, ours: str, theirs: str) -> None:
    for part in ("weight", "bias"):
        state[f"{ours}.{part}"] = _numbers(file, f"{theirs}/{part}")


def _numbers(file: CTranslate2File, name: str) -> Tensor:
    tensor = file.tensor(name)
    if not tensor.is_floating_point():
        raise MultiheadError(
            asked=f"{name} in {file.path} as float32 or float16",
            arrived=f"{str(tensor.dtype).removeprefix('torch.')}: the model is quantised",
            remedy="convert it again with quantization='float16'",
        )
    return tensor.float()


def _tokenizer(transformers: Any, folder: Path) -> Any:
    try:
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            eos_token=_END,
            bos_token=_END,
            unk_token=_END,
            pad_token=_END,
        )
    # A missing or damaged file raises an Exception of the tokenizers package, which has no kind of its own.
    except Exception as fault:
        raise _no_tokens(folder, str(fault).splitlines()[0] if str(fault) else type(fault).__name__) from fault
    missing = [token for token in (_START, _END, _NO_TIMES) if token not in tokenizer.get_vocab()]
    if missing:
        raise _no_tokens(folder, f"no token {', '.join(missing)}")
    return tokenizer


def _no_tokens(folder: Path, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"the tokenizer of a Whisper in {folder / 'tokenizer.json'}",
        arrived=arrived,
        remedy="complete the folder: model.bin, config.json and tokenizer.json belong together",
    )


def _settings(folder: Path) -> dict[str, list[int]]:
    """Ids the model may not write, ever and at the beginning."""
    try:
        told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise _no_settings(folder, str(fault)) from fault
    found: dict[str, list[int]] = {}
    for name in ("suppress_ids", "suppress_ids_begin"):
        ids = told.get(name) if isinstance(told, dict) else None
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise _no_settings(folder, f"{name}: {ids!r}")
        found[name] = ids
    return found


def _no_settings(folder: Path, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"the settings of a Whisper in {folder / 'config.json'}, with lists suppress_ids and suppress_ids_begin",
        arrived=arrived,
        remedy="complete the folder: model.bin, config.json and tokenizer.json belong together",
    )
