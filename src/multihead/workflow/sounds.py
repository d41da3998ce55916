"""From recordings to batches: at the model's rate, in chunks of one document, with the words it writes of them."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float32
from torch import Tensor, nn

from multihead.corpus import CLASSES, Files, Sound, TokenClasses, grey_png, resample, token_classes
from multihead.error import MultiheadError
from multihead.interop import SoundFacts, log_mel, reads_sounds
from multihead.measure import Batch, Span
from multihead.record import Document
from multihead.workflow.media import EXAMPLES, EncodedMedia, place_of
from multihead.workflow.transcribe import transcribe, writes

PLACES = ("sound", "silence")
"""Classes of the places of a recording."""

MOMENT = 0.5
"""Seconds of one unit on the page."""

QUIET = 0.01
"""A place is silence where its loudness (root mean square) is under this share of the loudest of the recording."""

_SHORTEST = 0.1
_PICTURE_COLUMNS, _PICTURE_ROWS, _GREYS = 320, 40, 15


def encode_sounds(
    model: nn.Module, facts: SoundFacts, sounds: Files[Sound] | Sequence[Sound], *, tokenizer: Any = None
) -> EncodedMedia:
    """Make recordings ready for a model, and say which place of its encoder is sound and which is silence.

    A recording is brought to the model's rate and cut into chunks of `facts.longest`; a rest under 0.1 s is left out.
    Whisper gets log-mel frames, and for its decoder the start tokens and its own transcript of the chunk, so that
    decoder and cross heads see real tokens. It reads 30 s whatever the recording's length: what comes after the end is
    silence that its heads do see, so it is measured, as the class "silence". Others get the samples, chunk by chunk.

    Args:
        model: A model that reads sound.
        facts: What it wants of a recording.
        sounds: What to read; each is asked for once.
        tokenizer: The tokenizer of its decoder; None where it has none.

    Returns:
        One document a recording, places of the classes `PLACES` (after those of tokens, where there is a decoder), and
        for the first recordings spans over moments of half a second and over the words of the transcript.

    Raises:
        MultiheadError: There is no recording, or the model reads none.

    Example:
        >>> encode_sounds(model, opened.sounds, read_sounds("speech/"), tokenizer=opened.tokenizer)  # doctest: +SKIP
    """
    if not reads_sounds(model) or not len(sounds):
        raise MultiheadError(
            asked="recordings, and a model that reads them",
            arrived=f"{len(sounds)} recordings for {type(model).__name__}",
            remedy="pass a list of recordings, and a model of sound (Whisper, wav2vec 2.0, HuBERT)",
        )
    reader = _Reader(model, facts, tokenizer)
    documents: list[Document] = []
    batches: list[Batch] = []
    for index, sound in enumerate(sounds):
        chunks = reader.read(sound, index)
        batches += chunks
        places = sum(table.shape[1] for chunk in chunks for table in (chunk.classes or {}).values())
        documents.append(Document(name=sound.name, digest=sound.digest, tokens=places))
    return EncodedMedia(
        model=model,
        documents=tuple(documents),
        batches=tuple(batches),
        classes=reader.classes,
        targets={},
    )


def loud_places(
    samples: Float32[Tensor, " samples"], *, stride: int, places: int, loudest: float
) -> Bool[Tensor, " places"]:
    """Which places hold sound: root mean square of the samples under each, against the loudest place.

    Args:
        samples: One chunk.
        stride: Samples from one place to the next.
        places: How many places there are; those after the end are silent.
        loudest: Root mean square of the loudest place of the whole recording.
    """
    level = loudness(samples, stride=stride)[:places]
    loud = level >= max(QUIET * loudest, torch.finfo(torch.float32).tiny)
    return torch.nn.functional.pad(loud, (0, places - len(loud)))


def loudness(samples: Float32[Tensor, " samples"], *, stride: int) -> Float32[Tensor, " places"]:
    """Root mean square of each stretch of `stride` samples, the last one filled up with silence."""
    whole = torch.nn.functional.pad(samples, (0, -len(samples) % stride))
    return whole.view(-1, stride).square().mean(dim=1).sqrt()


class _Reader:
    """Reads recordings for one model."""

    def __init__(self, model: nn.Module, facts: SoundFacts, tokenizer: Any) -> None:
        self.model, self.facts, self.tokenizer = model, facts, tokenizer
        self.device, self.dtype = place_of(model)
        self.classes = self._names()
        self.side = "input_features" if facts.kind == "mel" else "input_values"

    def read(self, sound: Sound, index: int) -> list[Batch]:
        """The chunks of one recording."""
        facts = self.facts
        samples = resample(sound.samples, rate=sound.rate, new_rate=facts.rate)
        loudest = float(loudness(samples, stride=facts.stride).max())
        least = round(_SHORTEST * facts.rate)
        starts = [at for at in range(0, len(samples), facts.longest) if not at or len(samples) - at >= least]
        return [
            self._chunk(samples[at : at + facts.longest], index, loudest=loudest, kept=index < EXAMPLES and not at)
            for at in starts
        ]

    def _chunk(self, samples: Tensor, index: int, *, loudest: float, kept: bool) -> Batch:
        inputs = {self.side: self._features(samples)}
        places = self._places(samples)
        loud = loud_places(samples, stride=self.facts.stride, places=places, loudest=loudest)
        names = self.classes.names
        number = torch.where(loud, names.index("sound"), names.index("silence"))
        classes = {self.side: number[None]}
        spans = [self._moments(samples, places)] if kept else []
        if writes(self.model):
            start, written = transcribe(self.model, inputs[self.side])
            ids = torch.tensor([[*start, *written]], device=self.device)
            inputs["decoder_input_ids"] = ids
            classes["decoder_input_ids"] = self.classes.table[ids.cpu()]
            spans += [self._words(start, written)] if kept and written else []
        return Batch(inputs=inputs, document=(index,), classes=classes, spans=tuple(spans))

    def _features(self, samples: Tensor) -> Tensor:
        if self.facts.kind == "mel":
            return log_mel(samples, facts=self.facts)[None].to(self.device, self.dtype)
        if self.facts.normalise:
            samples = (samples - samples.mean()) / (samples.var(correction=0) + 1e-7).sqrt()
        return samples[None].to(self.device, self.dtype)

    def _places(self, samples: Tensor) -> int:
        """Places of the encoder."""
        if self.facts.kind == "mel":
            return self.facts.longest // self.facts.stride
        config, length = cast(Any, self.model).config, len(samples)
        for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
            length = (length - int(kernel)) // int(stride) + 1
        return length

    def _names(self) -> TokenClasses:
        """The classes of tokens, where there is a decoder, and those of places after them."""
        if not writes(self.model):
            none = torch.zeros(0, dtype=torch.int64)
            return TokenClasses(names=PLACES, table=none, special=none.bool(), marks="")
        size = int(cast(Any, self.model).config.vocab_size)
        if self.tokenizer is None:
            table = torch.full((size,), CLASSES.index("other"))
            return TokenClasses(
                names=(*CLASSES, *PLACES), table=table, special=torch.zeros_like(table).bool(), marks=""
            )
        words = token_classes(self.tokenizer, size=size)
        return TokenClasses(names=(*words.names, *PLACES), table=words.table, special=words.special, marks=words.marks)

    def _moments(self, samples: Tensor, places: int) -> Span:
        """Moments of half a second, as far as the recording goes."""
        facts = self.facts
        each = max(1, round(MOMENT * facts.rate / facts.stride))
        heard = min(places, math.ceil(len(samples) / facts.stride))
        count = math.ceil(heard / each)
        shown = min(count * each, places)
        step = each * facts.stride / facts.rate
        mel = log_mel(samples, facts=facts, length=count * each * facts.stride)
        return Span(
            row=0,
            start=0,
            units=tuple(place // each for place in range(shown)),
            texts=tuple(
                f"{moment * step:.1f} s" if step >= MOMENT else f"{moment * step:.2g} s" for moment in range(count)
            ),
            side=self.side,
            grid=(1, count),
            picture=_spectrogram(mel),
        )

    def _words(self, start: list[int], written: list[int]) -> Span:
        """The words of a transcript: a token that begins with a space begins a word."""
        pieces = [str(token) for token in written]
        if self.tokenizer is not None:
            pieces = [str(self.tokenizer.decode([token])) for token in written]
        units: list[int] = []
        texts: list[str] = []
        for piece in pieces:
            if not texts or self.tokenizer is None or piece[:1].isspace():
                texts.append("")
            texts[-1] += piece
            units.append(len(texts) - 1)
        return Span(
            row=0,
            start=len(start),
            units=tuple(units),
            texts=tuple(text.strip() or "·" for text in texts),
            side="decoder_input_ids",
        )


def _spectrogram(mel: Tensor) -> bytes:
    """Log-mel frames as a picture: time to the right, high tones above, loud is dark."""
    columns, rows = min(_PICTURE_COLUMNS, mel.shape[1]), min(_PICTURE_ROWS, mel.shape[0])
    pooled = torch.nn.functional.adaptive_avg_pool2d(mel[None].float(), (rows, columns))[0].flip(0)
    low, high = pooled.min(), pooled.max()
    ink = (pooled - low) / (high - low).clamp(min=1e-6)
    return grey_png((_GREYS * (1 - ink)).round().to(torch.uint8))
