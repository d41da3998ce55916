"""Which tokens stand at the query and key positions of a call, from what the modules around it were given."""

import functools
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from multihead.attend import Problem
from multihead.hooks.call import Site, Tokens
from multihead.hooks.trace import CACHES, Frame
from multihead.layer import Attends, LSHAttention
from multihead.pattern import Pattern
from multihead.pattern.algebra import And
from multihead.pattern.chosen import Chosen

# What a module reads that has no tokens: what is further out then belongs to another part of the model.
_OTHER_INPUTS = ("pixel_values", "input_features", "input_values")
_ENCODER = "encoder"
# Rows of a mask looked at together: a pattern is never written out whole.
_ROWS = 128


@dataclass(slots=True)
class _History:
    """What a model has read since its cache was empty.

    Args:
        tokens: All of it, (batch, tokens).
        module: Path of the first attention layer of the model.
        mark: One component of that layer's keys, or values where they are not known,
            (batch, tokens). Beam search reorders the rows of a cache unseen: then
            the keys are not those of the tokens remembered.
    """

    tokens: Tokens
    module: str
    mark: Tensor


@dataclass(slots=True)
class _Encoded:
    """Tokens behind the hidden states an encoder returned."""

    states: weakref.ref[Tensor]
    tokens: Tokens


class _Kept(threading.local):
    def __init__(self) -> None:
        self.histories: dict[int, _History] = {}
        self.encoded: list[_Encoded] = []


class TokenReader:
    """Finds the tokens of each call, and remembers those a cache stands for."""

    def __init__(self) -> None:
        self._kept = _Kept()

    def leave(self, frame: Frame) -> None:
        """A module that read tokens has returned: remember what its hidden states stand for."""
        states = _states(frame.output)
        if frame.tokens is not None and states is not None:
            alive = [old for old in self._kept.encoded if old.states() is not None]
            self._kept.encoded = [*alive, _Encoded(weakref.ref(states), frame.tokens)]

    def read(self, frames: Sequence[Frame], site: Site, problem: Problem) -> tuple[Tokens, Tokens]:
        """Tokens of the queries and of the keys.

        Args:
            frames: What runs around the call, the outermost first.
            site: Where the call is made.
            problem: What is computed.
        """
        if site.cross:
            return self._cross(frames, site, problem)
        ids, source = _ids(frames, site, problem)
        past = past_of(frames) or 0
        whole = self._whole(frames, site, problem, ids)
        keep = None if whole.keep is None else whole.keep[:, past : past + problem.q_len]
        queries = Tokens(ids=ids, keep=_or_none(keep))
        if source is not None and past == 0:
            source.tokens = queries
        return queries, _at_keys(whole, past + problem.q_len, problem)

    def _cross(self, frames: Sequence[Frame], site: Site, problem: Problem) -> tuple[Tokens, Tokens]:
        ids, _ = _ids(frames, site, problem)
        total = (past_of(frames) or 0) + problem.q_len
        mask = _mask(frames, site, lambda m: m.shape == (problem.batch, total))
        queries = Tokens(ids=ids, keep=None if mask is None else _or_none(mask[:, -problem.q_len :]))
        given = (frame.given.get("encoder_hidden_states") for frame in reversed(frames))
        states = next((tensor for tensor in given if tensor is not None), None)
        known = next((e.tokens for e in self._kept.encoded if states is not None and e.states() is states), Tokens())
        keep = _named(frames, "encoder_attention_mask", problem)
        keep = _exact(known.keep, problem) if keep is None else keep
        keep = _seen(problem) if keep is None else keep
        return queries, Tokens(ids=_exact(known.ids, problem), keep=_or_none(keep))

    def _whole(self, frames: Sequence[Frame], site: Site, problem: Problem, ids: Tensor | None) -> Tokens:
        """Everything from the first token in the cache to the last query."""
        holder = _holder(frames)
        if holder is None:
            return Tokens(ids=ids, keep=_keep(frames, site, problem, 0, None))
        if holder.whole is None:
            # The first layer of a pass answers for all.
            holder.whole = self._remembered(holder, frames, site, problem, ids)
        return holder.whole

    def _remembered(
        self, holder: Frame, frames: Sequence[Frame], site: Site, problem: Problem, ids: Tensor | None
    ) -> Tokens:
        key, past, total = id(holder.module), holder.past, holder.past + problem.q_len
        cut = max(total - problem.kv_len, 0)
        # Scores that are no product of queries and keys come with keys of no dimensions; keys of our own modules may be
        # turned anew for every length.
        read = problem.k if problem.head_dim and not isinstance(holder.module, Attends) else problem.v
        fresh = read.detach()[:, 0, : total - cut, 0].clone()
        old = self._kept.histories.pop(key, None)
        if past and (old is None or not _continues(old, site, fresh[:, : past - cut], cut, past)):
            return Tokens(keep=_keep(frames, site, problem, past, None))
        before = None if old is None or not past else old
        tokens = Tokens(
            ids=_joined(before, past, ids), keep=_keep(frames, site, problem, past, before and before.tokens.keep)
        )
        mark = fresh if before is None else torch.cat([before.mark[:, :cut], fresh], dim=1)
        self._kept.histories[key] = _History(tokens, site.module, mark)
        return tokens


def past_of(frames: Sequence[Frame]) -> int | None:
    """How many tokens the cache held before this pass, None where there is no cache."""
    return next((frame.past for frame in reversed(frames) if frame.cache is not None), None)


def _holder(frames: Sequence[Frame]) -> Frame | None:
    """The innermost module outside of the layers that takes a cache: the one that reads a sequence bit by bit.

    Modules of our own have a cache each, and read by themselves.
    """
    found = None
    if frames and isinstance(frames[-1].module, Attends) and frames[-1].cache is not None:
        return frames[-1]
    for frame in frames:
        if frame.block:
            break
        if any(name in frame.names for name in CACHES):
            found = frame
    return found


def _continues(old: _History, site: Site, cached: Tensor, cut: int, past: int) -> bool:
    """Whether the cached keys are those that were computed from the remembered tokens."""
    return old.module == site.module and old.mark.shape[1] >= past and torch.equal(old.mark[:, cut:past], cached)


def _joined(old: _History | None, past: int, ids: Tensor | None) -> Tensor | None:
    if old is None or ids is None:
        return ids
    return None if old.tokens.ids is None else torch.cat([old.tokens.ids[:, :past], ids], dim=1)


def _keep(frames: Sequence[Frame], site: Site, problem: Problem, past: int, before: Tensor | None) -> Tensor | None:
    """Which tokens from the first in the cache to the last query are real, (batch, past + q_len), or None for all."""
    total = past + problem.q_len
    lengths = (total, max(problem.kv_len, total))
    mask = _mask(frames, site, lambda m: m.shape[0] == problem.batch and m.shape[1] in lengths)
    if mask is not None:
        return mask[:, :total]
    seen = _seen(problem, frames) if problem.kv_len >= problem.q_len else None
    if seen is None:
        return None if before is None else nn.functional.pad(before[:, :past], (0, problem.q_len), value=True)
    # A query sees at least itself; what was read before it may lie outside of its window.
    place = min(past, problem.kv_len - problem.q_len)
    new = seen[:, place : place + problem.q_len]
    old = torch.ones_like(seen[:, :1]).expand(-1, past) if before is None else before[:, :past]
    return torch.cat([old, new], dim=1)


def _within(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Frames from the innermost out, up to a module that reads pictures or sound."""
    for frame in reversed(frames):
        yield frame
        if "input_ids" not in frame.names and any(frame.given.get(name) is not None for name in _OTHER_INPUTS):
            return


def _side(frame: Frame, site: Site, name: str) -> str:
    """An encoder-decoder as a whole takes two of everything."""
    both = "decoder_input_ids" in frame.names and site.stack != _ENCODER
    return f"decoder_{name}" if both else name


def _ids(frames: Sequence[Frame], site: Site, problem: Problem) -> tuple[Tensor | None, Frame | None]:
    """Ids at the query positions, and the innermost module that was given them."""
    for frame in _within(frames):
        ids = frame.given.get(_side(frame, site, "input_ids"))
        if isinstance(ids, Tensor) and ids.shape == (problem.batch, problem.q_len) and not ids.is_floating_point():
            return ids, frame
    return None, None


def _mask(frames: Sequence[Frame], site: Site, fits: Callable[[Tensor], bool]) -> Tensor | None:
    """The innermost 2-D attention mask that fits."""
    for frame in _within(frames):
        mask = frame.given.get(_side(frame, site, "attention_mask"))
        if isinstance(mask, Tensor) and mask.ndim == 2 and fits(mask):
            return mask.bool()
    return None


def _named(frames: Sequence[Frame], name: str, problem: Problem) -> Tensor | None:
    """The innermost 2-D mask of this name over the keys."""
    shape = (problem.batch, problem.kv_len)
    given = (frame.given.get(name) for frame in reversed(frames))
    return next((mask.bool() for mask in given if isinstance(mask, Tensor) and mask.shape == shape), None)


def _at_keys(whole: Tokens, total: int, problem: Problem) -> Tokens:
    """The tokens at the keys: the last ones under a sliding cache; a static one has places that are still empty."""
    keep, spare = whole.keep, problem.kv_len - total
    if keep is None and spare > 0:
        keep = torch.ones(problem.batch, total, dtype=torch.bool, device=problem.k.device)
    ids, keep = (None if t is None else t[:, -problem.kv_len :] for t in (whole.ids, keep))
    if spare > 0:
        ids, keep = (None if t is None else nn.functional.pad(t, (0, spare)) for t in (ids, keep))
    return Tokens(ids=_exact(ids, problem), keep=_or_none(_exact(keep, problem)))


def _exact(tensor: Tensor | None, problem: Problem) -> Tensor | None:
    return tensor if tensor is not None and tensor.shape == (problem.batch, problem.kv_len) else None


def _seen(problem: Problem, frames: Sequence[Frame] = ()) -> Tensor | None:
    """Keys that some query may attend to (batch, kv_len): where a mask shuts a whole column, it is padding.

    Not so where keys are chosen from what they hold: one that nobody chose is a token all the same. What was chosen is
    left out of a pattern; tokens that hash see others and not themselves, so that who sees something is real too.
    """
    mask = _unchosen(problem.mask) if isinstance(problem.mask, Pattern) else problem.mask
    if mask is None or (isinstance(mask, Pattern) and mask.batch is None):
        return None  # the same for every row of the batch: nothing is padded
    problem = problem if mask is problem.mask else replace(problem, mask=mask)
    columns = torch.zeros(problem.batch, problem.kv_len, dtype=torch.bool, device=problem.q.device)
    hashed = any(isinstance(frame.module, LSHAttention) for frame in frames[-1:])
    first = problem.kv_len - problem.q_len
    for start in range(0, problem.q_len, _ROWS):
        allowed = problem.allowed(slice(start, start + _ROWS))
        columns = columns if allowed is None else columns | allowed.any(dim=1).any(dim=1)
        if hashed and allowed is not None:
            rows = allowed.any(dim=1).any(dim=-1)
            columns[:, first + start : first + start + rows.shape[1]] |= rows
    return columns


def _unchosen(mask: Pattern) -> Pattern | None:
    """A pattern without the parts of it that were chosen from the content of a call; None where there is no other."""
    if isinstance(mask, Chosen):
        return None
    if not isinstance(mask, And):
        return mask
    parts = [part for part in map(_unchosen, mask.parts) if part is not None]
    return functools.reduce(operator.and_, parts) if parts else None


def _or_none(keep: Tensor | None) -> Tensor | None:
    """None where every position is real."""
    return None if keep is None or bool(keep.all()) else keep


def _states(output: object) -> Tensor | None:
    """Hidden states of a module's output."""
    states = getattr(output, "last_hidden_state", None)
    if states is None and isinstance(output, tuple) and output:
        states = output[0]
    return states if isinstance(states, Tensor) else None
