"""How long an input a model takes: where its positions end, and how far it was made to go."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from multihead.error import MultiheadError
from multihead.record import Note

DEFAULT_LENGTH = 512
# Tokenizers without a limit state one of about 1e30.
_NO_LIMIT = 10_000_000
_UNKNOWN = "of no known kind"
_STATED = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "block_size")
_POSITION = re.compile(r"(^|_)(pos|position|positions|positional)(_|$)|^(wpe|pe)$")
_NO_TABLE = re.compile(r"rel(ative)?_|_bias|proj|ids")
_OTHER_SENSES = re.compile(r"vision|visual|image|patch|audio|speech")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many tokens a model takes.

    Args:
        hard: Rows of its table of positions: beyond it the model cannot run. None where it has none.
        soft: The length it, or else its tokenizer, states it was made for: beyond it the model runs as its positions
            are configured. None where nothing is stated short of `hard`.
        scaling: What its positions are and how they are scaled: `"rope type yarn, factor 4"`, `"a table"`.
    """

    hard: int | None
    soft: int | None
    scaling: str

    @property
    def stated(self) -> int | None:
        """The smaller of both."""
        return min((n for n in (self.hard, self.soft) if n is not None), default=None)


def length_limits(model: nn.Module, tokenizer: object) -> Limits:
    """Find the longest input of a model from its positions.

    A table of positions, learned or computed once, ends hard at its last row (`nn.Embedding` under the name of a
    position, less the rows kept for padding; so GPT-2, BERT, OPT). Rotary positions, ALiBi and relative ones go on
    (Llama, BLOOM, T5): what the configuration states is the length of the training. Where a length is stated and the
    positions are of no known kind, it counts as hard.

    Example:
        `length_limits(bert, tokenizer)` is `Limits(hard=512, soft=None, scaling="a table")`.
    """
    config = getattr(model, "config", None)
    config = getattr(config, "get_text_config", lambda: config)()
    said = [n for key in _STATED if (n := _length(getattr(config, key, None))) is not None]
    tokenizers = _length(getattr(tokenizer, "model_max_length", None))
    rows = min(_tables(model), default=None)
    if rows is not None:
        return Limits(hard=rows, soft=_below(tokenizers, rows), scaling="a table")
    kind = _kind(model, config)
    stated = min(said, default=None)
    # MPT lays its ALiBi out once, for the length it states.
    if stated is None or (kind and getattr(config, "model_type", "") != "mpt"):
        return Limits(hard=None, soft=stated or tokenizers, scaling=kind or _UNKNOWN)
    return Limits(
        hard=stated, soft=tokenizers if tokenizers and tokenizers < stated else None, scaling=kind or _UNKNOWN
    )


def _length(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 < value < _NO_LIMIT else None


def _below(length: int | None, hard: int) -> int | None:
    return length if length is not None and length < hard else None


def _tables(model: nn.Module) -> Iterator[int]:
    """Tokens that each table of positions has rows for."""
    for path, module in model.named_modules():
        if _OTHER_SENSES.search(path):
            continue
        name = path.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and _is_position(name):
            # The first rows may be kept for padding, by an offset (OPT, BART) or up to the padding index (RoBERTa).
            kept = int(
                getattr(module, "offset", None) or (-1 if module.padding_idx is None else module.padding_idx) + 1
            )
            yield module.num_embeddings - kept
        held = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        # Sinusoids that are computed anew for longer inputs end nowhere.
        if not hasattr(module, "make_weights"):
            yield from (_rows(tensor) for leaf, tensor in held.items() if _is_position(leaf) and _is_table(tensor))


def _is_position(name: str) -> bool:
    return _POSITION.search(name) is not None and _NO_TABLE.search(name) is None


def _is_table(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim >= 2 and _rows(tensor) > 1


def _rows(tensor: Tensor) -> int:
    return max(tensor.shape[:-1])


def _kind(model: nn.Module, config: object) -> str:
    """The kind of positions that have no table to end, or nothing."""
    alibi = getattr(config, "alibi", False) or getattr(getattr(config, "attn_config", None), "alibi", False)
    if alibi or getattr(config, "model_type", "") == "bloom":
        return "ALiBi"
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, Mapping) and rope:
        return _rope(cast(Mapping[str, Any], rope))
    relative = any(getattr(config, key, False) for key in ("relative_attention", "relative_attention_num_buckets"))
    if relative or any(re.search(r"relative_|(^|\.)r_w_bias|rel_emb", name) for name, _ in model.named_parameters()):
        return "relative"
    return "sinusoids" if any(hasattr(module, "make_weights") for module in model.modules()) else ""


def _rope(parameters: Mapping[str, Any]) -> str:
    # Models with two kinds of layers hold one entry for each.
    entries = [parameters] if "rope_type" in parameters else [e for e in parameters.values() if isinstance(e, Mapping)]
    kinds = dict.fromkeys(_rope_of(entry) for entry in entries)
    return "rope type " + " and ".join(kinds or ["default, not scaled"])


def _rope_of(entry: Mapping[str, Any]) -> str:
    kind, factor = str(entry.get("rope_type", "default")), entry.get("factor")
    return "default, not scaled" if kind == "default" else f"{kind}, factor {factor:g}" if factor else kind


def checked_length(asked: int | None, limits: Limits) -> int:
    """Tokens a chunk: what was asked if the model can take it, else 512 or what the model states, if that is less.

    Raises:
        MultiheadError: Fewer than 4, or more than the model has positions for.
    """
    if asked is None:
        return min(DEFAULT_LENGTH, limits.stated or DEFAULT_LENGTH)
    hard = limits.hard
    if asked < 4 or (hard is not None and asked > hard):
        raise MultiheadError(
            asked="a maximum length between 4 and the longest input of the model",
            arrived=f"max_length={asked}, the model takes {hard if hard else 'any number of'} tokens",
            remedy=f"pass max_length={max(asked, 4) if hard is None else min(max(asked, 4), hard)}, or leave it out",
        )
    return asked


def beyond(limits: Limits, longest: int) -> tuple[Note, ...]:
    """A note if the longest input that was read is longer than the model states.

    Example:
        >>> beyond(Limits(hard=None, soft=8192, scaling="rope type default, not scaled"), 16384)[0].text
        'read at 16,384 tokens, 2x the 8,192 it states; its positions: rope type default, not scaled'
    """
    soft = limits.soft
    if soft is None or longest <= soft:
        return ()
    times = f"{longest / soft:.3g}x the {soft:,} it states"
    return (Note(about="", quantity="", text=f"read at {longest:,} tokens, {times}; its positions: {limits.scaling}"),)
