"""What a speech model writes of a recording, so that its decoder is measured on tokens of its own."""

import inspect
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.workflow.media import at_rest

LONGEST = 200
"""Tokens written of one chunk; 30 seconds of speech are about a hundred."""

# On noise and music a speech model can write one thing for ever: copies of up to 8 tokens, 16 tokens in all, 3 copies.
_LONGEST_PERIOD, _LEAST_LOOP = 8, 16


def writes(model: nn.Module) -> bool:
    """Whether a model of sound has a decoder."""
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def transcribe(
    model: nn.Module, features: Float[Tensor, "1 bins frames"], *, longest: int = LONGEST
) -> tuple[list[int], list[int]]:
    """The start tokens of a decoder, and what it writes after them: each time the likeliest token.

    It ends with the end token, at the longest length, or in a loop, of which the first copy is kept.

    Start tokens are those of the model's own configuration; a model of many languages is asked first which one it
    hears. Tokens that the configuration suppresses, and time stamps where it has a token against them, are not written.

    Args:
        model: Whisper, or a model with its ways.
        features: Log-mel frames of one chunk.
        longest: Most tokens to write.

    Returns:
        Start tokens, and written tokens without the end token; none from a model without a layer that writes.
    """
    callable_model = cast(Any, model)
    told: Any = getattr(model, "generation_config", None) or callable_model.config
    with at_rest(model):
        encoded = callable_model.get_encoder()(features)
        start = _start(callable_model, told, encoded)
        positions = int(getattr(callable_model.config, "max_target_positions", LONGEST + len(start)))
        written = _written(callable_model, told, encoded, start, min(longest, positions - len(start)))
    return start, written


def _start(model: Any, told: Any, encoded: Any) -> list[int]:
    """Start, language, task, no time stamps: as far as the configuration knows them."""
    first = getattr(told, "decoder_start_token_id", None)
    start = [int(first if first is not None else model.config.decoder_start_token_id)]
    languages, tasks = getattr(told, "lang_to_id", None), getattr(told, "task_to_id", None)
    if languages and (logits := _logits(model, encoded, start)) is not None:
        heard = torch.tensor(sorted(languages.values()), device=logits.device)
        start.append(int(heard[logits[heard].argmax()]))
        start += [int(tasks["transcribe"])] if tasks and "transcribe" in tasks else []
    silent = getattr(told, "no_timestamps_token_id", None)
    return start if silent is None else [*start, int(silent)]


def _logits(model: Any, encoded: Any, ids: list[int]) -> Tensor | None:
    given = torch.tensor([ids], device=encoded[0].device)
    logits = getattr(model(encoder_outputs=encoded, decoder_input_ids=given), "logits", None)
    return None if logits is None else logits[0, -1]


def _written(model: Any, told: Any, encoded: Any, start: list[int], longest: int) -> list[int]:
    end = getattr(told, "eos_token_id", None)
    ends = {int(token) for token in (end if isinstance(end, list) else [end]) if token is not None}
    written: list[int] = []
    new, past = torch.tensor([start], device=encoded[0].device), None
    # What transformers calls the cache depends on its version.
    cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    while len(written) < longest:
        output = model(encoder_outputs=encoded, decoder_input_ids=new, use_cache=True, **{cache: past})
        if getattr(output, "logits", None) is None:
            return []
        past, logits = output[cache], output.logits[0, -1].float().clone()
        logits[_suppressed(told, first=not written)] = -torch.inf
        silent = getattr(told, "no_timestamps_token_id", None)
        if silent is not None:
            logits[int(silent) :] = -torch.inf
        token = int(logits.argmax())
        if token in ends:
            break
        written.append(token)
        if (loop := _loop(written)) is not None:
            return written[:loop]
        new = torch.tensor([[token]], device=new.device)
    return written


def _loop(written: list[int]) -> int | None:
    """Where the first copy of a block ends that a model has begun to write without end, or None."""
    for period in range(1, _LONGEST_PERIOD + 1):
        copies = max(3, -(-_LEAST_LOOP // period))
        if written[-period * copies :] == written[-period:] * copies:
            return len(written) - period * (copies - 1)
    return None


def _suppressed(told: Any, *, first: bool) -> list[int]:
    names = ("suppress_tokens", "begin_suppress_tokens") if first else ("suppress_tokens",)
    return [int(token) for name in names for token in getattr(told, name, None) or () if int(token) >= 0]
