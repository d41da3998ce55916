"""From texts to batches: tokens, chunks, special tokens. The plan depends on the document list alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from multihead.corpus import CLASSES, Script, Text, Tokenizer, TokenRun, WordReader, read_script
from multihead.error import MultiheadError
from multihead.interop import quiet_transformers
from multihead.measure import Batch, Span
from multihead.record import Document, Note
from multihead.workflow.spans import choose_stretches, run_span, spans_by_document, text_span

SPECIAL = CLASSES.index("special")
# How far back from its last place a chunk may end so as not to cut a word.
_BORDER = 16
# Texts of which fewer tokens are unknown go without a note, and so do those after the first eight with one.
_UNKNOWN, _NOTES = 0.02, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Documents as the model will read them.

    Args:
        documents: One entry a document, in the order given.
        batches: One chunk of one document each.
        notes: What a reader must know about the tokens.
    """

    documents: tuple[Document, ...]
    batches: tuple[Batch, ...]
    notes: tuple[Note, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens the model will read, special tokens included."""
        return sum(document.tokens for document in self.documents)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each batch, special tokens included."""
        return tuple(batch.inputs["input_ids"].shape[1] for batch in self.batches)


def encode_texts(model: nn.Module, tokenizer: Tokenizer, texts: Sequence[Text], *, max_length: int) -> Encoded:
    """Tokenize texts, each once, and cut them into chunks of at most `max_length` tokens, special tokens included.

    Every token of a text is read exactly once. A chunk ends between words if a word ends within its last 16 places. If
    a single token would be left over, the chunk before the last ends earlier; only where chunks have no room for three
    tokens is a chunk of one token left. Each batch carries the class of every token by the word it belongs to, and six
    stretches of the texts are marked as examples: see `choose_stretches`.

    Raises:
        MultiheadError: There are no texts, one has fewer than 2 tokens, or there is no room between the special tokens.
    """
    if not texts:
        raise MultiheadError(
            asked="at least one text to measure on",
            arrived="none",
            remedy="pass a text, a file or a folder with text files",
        )
    reader = WordReader(tokenizer)
    writer = _Writer(model)
    shown = spans_by_document(len(texts))
    documents: list[Document] = []
    unknown: list[tuple[str, int, int]] = []
    # A text longer than the model reads is cut here: the tokenizer's warning about it would be false.
    with quiet_transformers():
        frame = find_frame(tokenizer, texts)
        room = max_length - len(frame[0]) - len(frame[1])
        _check_room(room, max_length)
        for index, text in enumerate(texts):
            script = read_script(tokenizer, reader, text.content)
            _check_length(script, text)
            chunks = list(cut_script(script, room))
            stretches = choose_stretches(script, chunks, count=shown.get(index, 0))
            tokens = writer.write(index, script, chunks, frame=frame, stretches=stretches)
            documents.append(Document(name=text.name, digest=text.digest, tokens=tokens))
            count = int(np.count_nonzero(script.tokens.ids == reader.spelling.unknown))
            unknown.append((text.name, count, len(script)))
    name = reader.spelling.tokens.get(reader.spelling.unknown or 0, "unknown")
    return Encoded(
        documents=tuple(documents), batches=tuple(writer.batches), notes=tuple(_unknown_notes(unknown, name))
    )


def encode_runs(model: nn.Module, tokenizer: Tokenizer, runs: Sequence[TokenRun]) -> Encoded:
    """Batches of given token sequences, every one a document, one stretch marked as an example.

    The example is in the run with the shortest period, where copies lie nearest: the end of its second copy and the
    start of its third.
    """
    writer = _Writer(model)
    example = min(range(len(runs)), key=lambda i: runs[i].period, default=-1)
    for index, run in enumerate(runs):
        spans = (run_span(WordReader(tokenizer), run),) if index == example else ()
        writer.add(index, list(run.ids), classes=None, spans=spans)
    documents = tuple(Document(name=run.name, digest=run.digest, tokens=len(run.ids)) for run in runs)
    return Encoded(documents=documents, batches=tuple(writer.batches))


def find_frame(tokenizer: Tokenizer, texts: Sequence[Text]) -> tuple[list[int], list[int]]:
    """The special tokens a tokenizer puts before and after a text, found by comparing both encodings of a short one.

    A letter or a digit will do; if the tokenizer has a token for none of them, the shortest text is tried.
    """
    probes = ["C", "a", "1", min((text.content for text in texts), key=len, default="")]
    for probe in probes:
        plain, full = (_ids(tokenizer, probe, special=special) for special in (False, True))
        for start in range(len(full) - len(plain) + 1 if plain else 0):
            if full[start : start + len(plain)] == plain:
                return full[:start], full[start + len(plain) :]
    return [], []


def _ids(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    return [int(i) for i in tokenizer(text, add_special_tokens=special)["input_ids"]]


def cut_script(script: Script, room: int) -> Iterator[tuple[int, int]]:
    """First token and end of each chunk of at most `room` tokens: see `encode_texts`."""
    start = 0
    while len(script) - start > room:
        last = start + room
        if len(script) - last == 1 and room > 2:
            last -= 1
        lowest = max(start + min(2, room), last - _BORDER + 1)
        stop = next((place for place in range(last, lowest - 1, -1) if script.begins(place)), last)
        yield start, stop
        start = stop
    yield start, len(script)


def _check_length(script: Script, text: Text) -> None:
    if len(script) < 2:
        raise MultiheadError(
            asked=f"a text of at least 2 tokens in {text.name}",
            arrived=f"{len(script)} token{'' if len(script) == 1 else 's'} from {text.content[:40]!r}",
            remedy="attention needs something to choose from: give a longer text",
        )


def _check_room(room: int, max_length: int) -> None:
    if room < 1:
        raise MultiheadError(
            asked="chunks with room for text between the special tokens",
            arrived=f"max_length={max_length}, of which special tokens take {max_length - room}",
            remedy=f"pass max_length={max_length - room + 8} or more",
        )


def _unknown_notes(unknown: Sequence[tuple[str, int, int]], token: str) -> Iterator[Note]:
    many = [(name, count, total) for name, count, total in unknown if count >= _UNKNOWN * total]
    for name, count, total in many[:_NOTES]:
        share = f"{100 * count / total:.0f} % of the tokens of {name} ({count:,} of {total:,}) are {token}"
        yield Note(about="", quantity="", text=f"{share}: this tokenizer does not know all of its characters or words")
    if len(many) > _NOTES:
        yield Note(about="", quantity="", text=f"so it is in {len(many) - _NOTES} more texts")


class _Writer:
    """Writes batches for one model: checks ids, adds the decoder's side."""

    def __init__(self, model: nn.Module) -> None:
        table = getattr(model, "get_input_embeddings", lambda: None)()
        self._size = getattr(table, "num_embeddings", None)
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._start = _decoder_start(model)
        self.batches: list[Batch] = []

    def write(
        self,
        index: int,
        script: Script,
        chunks: Sequence[tuple[int, int]],
        *,
        frame: tuple[list[int], list[int]],
        stretches: Sequence[tuple[int, int]],
    ) -> int:
        """Batches of the chunks of one document; returns how many tokens they hold."""
        ahead, behind = frame
        tokens = 0
        for start, stop in chunks:
            ids = [*ahead, *script.tokens.ids[start:stop].tolist(), *behind]
            classes = [SPECIAL] * len(ahead) + script.classes[start:stop].tolist() + [SPECIAL] * len(behind)
            spans = tuple(
                text_span(script, stretch, chunk=start, frame=len(ahead), before=tokens)
                for stretch in stretches
                if start <= stretch[0] < stop
            )
            self.add(index, ids, classes=classes, spans=spans)
            tokens += len(ids)
        return tokens

    def add(self, index: int, ids: list[int], *, classes: list[int] | None, spans: tuple[Span, ...]) -> None:
        """One batch of one row."""
        self._check(ids)
        inputs = {"input_ids": self._row(ids)}
        kinds = None if classes is None else {"input_ids": self._row(classes)}
        if self._start is not None:
            # An encoder-decoder reads the text on both sides: the decoder as if it were to write it.
            inputs["decoder_input_ids"] = self._row([self._start, *ids[:-1]])
            spans += tuple(moved for span in spans if (moved := _on_decoder(span, len(ids))) is not None)
            if classes is not None and kinds is not None:
                kinds["decoder_input_ids"] = self._row([SPECIAL, *classes[:-1]])
        self.batches.append(Batch(inputs=inputs, document=(index,), classes=kinds, spans=spans))

    def _row(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor([numbers], device=self._device)

    def _check(self, ids: list[int]) -> None:
        largest = max(ids, default=0)
        if isinstance(self._size, int) and largest >= self._size:
            raise MultiheadError(
                asked=f"token ids below {self._size}, the size of the model's vocabulary",
                arrived=f"the id {largest} from the tokenizer",
                remedy="use the tokenizer that was made with this model",
            )


def _on_decoder(span: Span, length: int) -> Span | None:
    """The same stretch on the decoder's side, one place on, without a word that has no room there."""
    units = span.units
    if span.start + 1 + len(units) > length:
        units = units[: units.index(units[-1])]
    texts = span.texts[: max(units, default=-1) + 1]
    return replace(span, start=span.start + 1, units=units, texts=texts, side="decoder_input_ids") if units else None


def _decoder_start(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return None
    for key in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(config, key, None)
        if isinstance(token, int):
            return token
    return 0
