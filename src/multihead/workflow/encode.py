"""From texts to batches: tokens, chunks, special tokens. The plan depends on the document list alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from multihead.corpus import Text, Tokenizer, TokenRun
from multihead.error import MultiheadError
from multihead.interop import quiet_transformers
from multihead.measure import Batch
from multihead.record import Document

DEFAULT_LENGTH = 512
# Tokenizers without a limit state one of about 1e30.
_NO_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Documents as the model will read them.

    Args:
        documents: One entry a document, in the order given.
        batches: One chunk of one document each.
    """

    documents: tuple[Document, ...]
    batches: tuple[Batch, ...]

    @property
    def tokens(self) -> int:
        """Tokens the model will read, special tokens included."""
        return sum(document.tokens for document in self.documents)


def length_limit(model: nn.Module, tokenizer: object) -> int | None:
    """Longest input the model states, in tokens; None where it states none."""
    config = getattr(model, "config", None)
    # RoBERTa's table has two more rows than it takes tokens; the tokenizer's own limit is right there.
    stated = [getattr(config, key, None) for key in ("max_position_embeddings", "n_positions")]
    stated.append(getattr(tokenizer, "model_max_length", None))
    limits = [int(n) for n in stated if isinstance(n, int | float) and 0 < n < _NO_LIMIT]
    return min(limits) if limits else None


def checked_length(asked: int | None, limit: int | None) -> int:
    """Tokens a chunk: what was asked if the model can take it, else 512 or the model's limit.

    Raises:
        MultiheadError: Fewer than 4, or more than the model takes.
    """
    if asked is None:
        return min(DEFAULT_LENGTH, limit) if limit else DEFAULT_LENGTH
    if asked < 4 or (limit is not None and asked > limit):
        raise MultiheadError(
            asked="a maximum length between 4 and the longest input of the model",
            arrived=f"max_length={asked}, the model takes {limit if limit else 'any number of'} tokens",
            remedy=f"pass max_length={min(max(asked, 4), limit or asked)}, or leave it out",
        )
    return asked


def encode_texts(model: nn.Module, tokenizer: Tokenizer, texts: Sequence[Text], *, max_length: int) -> Encoded:
    """Tokenize texts and cut them into chunks of at most `max_length` tokens, special tokens included.

    Raises:
        MultiheadError: There are no texts, or one has fewer than 2 tokens.
    """
    if not texts:
        raise MultiheadError(
            asked="at least one text to measure on",
            arrived="none",
            remedy="pass a text, a file or a folder with text files",
        )
    rows: list[tuple[int, list[int]]] = []
    documents: list[Document] = []
    for index, text in enumerate(texts):
        plain = _ids(tokenizer, text.content, special=False)
        if len(plain) < 2:
            raise MultiheadError(
                asked=f"a text of at least 2 tokens in {text.name}",
                arrived=f"{len(plain)} token{'' if len(plain) == 1 else 's'} from {text.content[:40]!r}",
                remedy="attention needs something to choose from: give a longer text",
            )
        before, after = _frame(plain, _ids(tokenizer, text.content, special=True))
        room = max_length - len(before) - len(after)
        chunks = [before + plain[start : start + room] + after for start in range(0, len(plain), room)]
        rows += [(index, chunk) for chunk in chunks]
        documents.append(Document(name=text.name, digest=text.digest, tokens=sum(map(len, chunks))))
    return Encoded(documents=tuple(documents), batches=_batches(model, rows))


def encode_runs(model: nn.Module, runs: Sequence[TokenRun]) -> Encoded:
    """Batches of given token sequences, every one a document."""
    rows = [(index, list(run.ids)) for index, run in enumerate(runs)]
    documents = tuple(Document(name=run.name, digest=run.digest, tokens=len(run.ids)) for run in runs)
    return Encoded(documents=documents, batches=_batches(model, rows))


def _ids(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    # A text longer than the model reads is cut below: the tokenizer's warning about it would be false.
    with quiet_transformers():
        encoded = tokenizer(text, add_special_tokens=special)
    return [int(i) for i in cast(Sequence[int], encoded["input_ids"])]


def _frame(plain: list[int], full: list[int]) -> tuple[list[int], list[int]]:
    """The special tokens a tokenizer puts before and after a text, found by comparing both encodings."""
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    return [], []


def _check_vocabulary(model: nn.Module, rows: Sequence[tuple[int, list[int]]]) -> None:
    table = getattr(model, "get_input_embeddings", lambda: None)()
    size = getattr(table, "num_embeddings", None)
    largest = max((max(ids) for _, ids in rows), default=0)
    if isinstance(size, int) and largest >= size:
        raise MultiheadError(
            asked=f"token ids below {size}, the size of the model's vocabulary",
            arrived=f"the id {largest} from the tokenizer",
            remedy="use the tokenizer that was made with this model",
        )


def _batches(model: nn.Module, rows: Sequence[tuple[int, list[int]]]) -> tuple[Batch, ...]:
    _check_vocabulary(model, rows)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    start = _decoder_start(model)
    batches: list[Batch] = []
    for index, ids in rows:
        inputs = {"input_ids": torch.tensor([ids], device=device)}
        if start is not None:
            # An encoder-decoder reads the text on both sides: the decoder as if it were to write it.
            inputs["decoder_input_ids"] = torch.tensor([[start, *ids[:-1]]], device=device)
        batches.append(Batch(inputs=inputs, document=(index,)))
    return tuple(batches)


def _decoder_start(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return None
    for key in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(config, key, None)
        if isinstance(token, int):
            return token
    return 0
