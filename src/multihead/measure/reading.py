"""Sequences that are read in steps: which call goes on with which, and where its keys lie."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from multihead.attend import Problem
from multihead.error import MultiheadError
from multihead.hooks import Call, Tokens
from multihead.record import Document


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    """What was read at one layer since its cache was empty.

    Args:
        rows: Number of tokens.
        batch: Number of sequences.
        tokens: The tokens.
    """

    rows: int
    batch: int
    tokens: Tokens

    @classmethod
    def first(cls, call: Call) -> "Read":
        """What a call reads that finds its cache empty."""
        return cls(rows=call.problem.q_len, batch=call.problem.batch, tokens=call.queries)

    def then(self, call: Call) -> "Read":
        """What was read once another call has been made."""
        rows = call.problem.q_len
        mine, new = self.tokens, call.queries
        ids = None if mine.ids is None or new.ids is None else torch.cat([mine.ids, new.ids], 1)
        keep = None
        if mine.keep is not None or new.keep is not None:
            keep = torch.cat([_kept(mine, self.batch, self.rows, call), _kept(new, self.batch, rows, call)], 1)
        return Read(rows=self.rows + rows, batch=self.batch, tokens=Tokens(ids=ids, keep=keep))

    def document(self, row: int, name: str) -> Document:
        """One sequence as a document; the digest is that of its tokens without padding."""
        ids, keep = self.tokens.ids, self.tokens.keep
        kept = slice(None) if keep is None else keep[row].cpu()
        told = b"" if ids is None else ids[row].cpu()[kept].long().numpy().tobytes()
        return Document(
            name=name,
            digest=hashlib.sha256(told).hexdigest()[:16] if told else "",
            tokens=self.rows if keep is None else int(keep[row].sum()),
        )


def goes_on(call: Call, before: Read) -> bool:
    """Whether a call reads on where the calls before it at the same layer ended.

    Raises:
        MultiheadError: It seems to, but its cache holds something else.
    """
    problem = call.problem
    if not _reads_cache(call) or problem.batch != before.batch:
        return False
    if problem.q_offset != before.rows - _dropped(call, before):
        return False
    if not call.site.cross and before.tokens.ids is not None and call.keys.ids is None:
        raise MultiheadError(
            asked="to watch a sequence grow, row by row",
            arrived=f"a cache whose rows have changed places, or were changed, in {call.site.module}",
            remedy="generate without beams (num_beams=1), or generate first and then watch `model(sequence)`",
        )
    return True


def check_begins(call: Call, before: Read | None) -> None:
    """Refuse a call that reads a cache the calls before it did not fill.

    Raises:
        MultiheadError: It does.
    """
    if _reads_cache(call):
        seen = "nothing" if before is None else f"{before.batch} rows of {before.rows} tokens"
        problem = call.problem
        raise MultiheadError(
            asked="to watch a sequence from its first token on",
            arrived=f"{problem.batch} rows of {problem.q_len} queries over {problem.kv_len} keys, from a cache, in "
            f"{call.site.module}, which has read {seen}",
            remedy="fill the cache inside the block too, or watch `model(sequence)` with use_cache=False",
        )


def absolute(call: Call, read: Read) -> Call:
    """The same call with its keys at their positions in the whole sequence.

    A sliding cache holds the last keys only: those it has dropped come back as keys that no query may attend to.

    Args:
        call: The call.
        read: What was read at its layer, the queries of the call among it.
    """
    dropped = max(read.rows - call.problem.kv_len, 0)
    if call.site.cross or dropped == 0:
        return call
    whole = read.tokens
    return replace(call, problem=_moved(call.problem, dropped), keys=Tokens(ids=whole.ids, keep=whole.keep))


def _moved(problem: Problem, by: int) -> Problem:
    allowed = problem.allowed()
    if allowed is None:
        allowed = torch.ones((1, 1, problem.q_len, problem.kv_len), dtype=torch.bool, device=problem.q.device)
    bias = problem.bias_rows()
    return replace(
        problem,
        k=pad(problem.k, (0, 0, by, 0)),
        v=pad(problem.v, (0, 0, by, 0)),
        mask=pad(allowed, (by, 0)),
        bias=None if bias is None else pad(bias, (by, 0)),
        q_offset=(problem.q_offset or 0) + by,
    )


def _reads_cache(call: Call) -> bool:
    """Whether something was read before its queries."""
    return bool(call.problem.q_offset)


def _dropped(call: Call, before: Read) -> int:
    """Keys a sliding cache has let go."""
    return 0 if call.site.cross else max(before.rows + call.problem.q_len - call.problem.kv_len, 0)


def _kept(tokens: Tokens, batch: int, rows: int, call: Call) -> Tensor:
    if tokens.keep is not None:
        return tokens.keep
    return torch.ones((batch, rows), dtype=torch.bool, device=call.problem.q.device)
