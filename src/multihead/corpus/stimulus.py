"""Random tokens that repeat: the stimulus on which induction, duplicate-token and previous-token heads show."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from multihead.corpus.classes import token_classes
from multihead.corpus.text import digest_of
from multihead.corpus.tokenizer import Tokenizer
from multihead.error import MultiheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRun:
    """A sequence of token ids: a block of random tokens, several times over.

    Args:
        name: Which run it is: `"repeated-03"`.
        ids: The sequence, with the special tokens around it.
        start: Place of the block's first token.
        period: Length of the block.
        repeats: How many times it stands there.
    """

    name: str
    ids: tuple[int, ...]
    start: int
    period: int
    repeats: int

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the ids, written in decimal with spaces between."""
        return digest_of(" ".join(map(str, self.ids)).encode())


def repeated_tokens(
    tokens: Tokenizer | Sequence[int],
    *,
    runs: int = 16,
    periods: tuple[int, int] = (20, 60),
    repeats: int = 4,
    max_length: int | None = None,
    seed: int = 0,
) -> tuple[TokenRun, ...]:
    """Runs of random tokens, each run one block repeated, between CLS (or BOS) and SEP where the model has them.

    The block's tokens are drawn uniformly and without replacement, so the other copies of a token are exactly those
    one, two, ... periods away. The period is drawn anew for each run: with a fixed one, a head that looks a fixed
    distance back would pass for an induction head. Run i depends on the arguments and i alone, so a longer list begins
    with the shorter one.

    Args:
        tokens: A tokenizer (its `ordinary_tokens`, framed by `frame_of`), or the token ids to draw from.
        runs: How many sequences.
        periods: Shortest and longest block, both included.
        repeats: Copies of the block in a run.
        max_length: Longest sequence the model takes. If it is too short for the longest block, blocks get shorter, the
            shortest down to a third of the longest, so that periods still differ.
        seed: Another seed gives other runs.

    Raises:
        MultiheadError: Fewer distinct tokens than the longest block needs, or numbers that make no run.

    Example:
        >>> run = repeated_tokens(range(1000), runs=1, periods=(3, 9))[0]
        >>> run.ids == run.ids[: run.period] * 4
        True

    Source: Olsson et al., "In-context Learning and Induction Heads" (2022), arXiv:2209.11895.
    """
    allowed, before, after = (tokens, (), ()) if isinstance(tokens, Sequence) else _of_tokenizer(tokens)
    shortest, longest = periods
    if max_length is not None:
        room = (max_length - len(before) - len(after)) // max(repeats, 1)
        if room < longest:
            shortest, longest = min(shortest, max(2, room // 3)), room
    if runs < 1 or repeats < 2 or not 2 <= shortest <= longest:
        raise MultiheadError(
            asked="at least 1 run of at least 2 copies of a block of 2 tokens or more, the shortest block named first",
            arrived=f"runs={runs}, repeats={repeats}, periods={periods}, max_length={max_length}",
            remedy="for example runs=16, repeats=4, periods=(20, 60), max_length=None",
        )
    choices = sorted(set(allowed))
    if len(choices) < longest:
        raise MultiheadError(
            asked=f"blocks of up to {longest} distinct tokens",
            arrived=f"{len(choices)} tokens to draw from",
            remedy=f"pass shorter periods, for example periods=({max(2, len(choices) // 3)}, {max(2, len(choices))})",
        )
    made: list[TokenRun] = []
    for number in range(runs):
        draw = random.Random(f"{seed}:{number}")
        period = draw.randint(shortest, longest)
        ids = (*before, *draw.sample(choices, period) * repeats, *after)
        made.append(TokenRun(name=f"repeated-{number:02}", ids=ids, start=len(before), period=period, repeats=repeats))
    return tuple(made)


def _of_tokenizer(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return ordinary_tokens(tokenizer), *frame_of(tokenizer)


def ordinary_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of the tokens that stand for visible text: no special tokens, placeholders, lone bytes or white space.

    Example:
        `repeated_tokens(ordinary_tokens(tokenizer)[:1000])` draws from the first thousand of them.
    """
    classes = token_classes(tokenizer)
    return tuple(classes.ids("word_start", "continuation", "punctuation", "digit").tolist())


def frame_of(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special tokens in front of and behind a sequence: CLS and SEP, or a beginning of sequence alone, or none."""
    start: int | None = getattr(tokenizer, "cls_token_id", None)
    end: int | None = getattr(tokenizer, "sep_token_id", None) if start is not None else None
    if start is None:
        start = getattr(tokenizer, "bos_token_id", None)
    return (() if start is None else (start,)), (() if end is None else (end,))
