"""The facts of one attention call that statistics ask for: positions, real tokens, bins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attend import Problem, Softmax
from multihead.corpus import TokenClasses
from multihead.error import MultiheadError
from multihead.hooks import Call, Tokens
from multihead.pattern import Pattern

BINS = 32
"""Number of bins along a sequence, from its first to its last real token."""

SPECIAL = ("special", "register")
"""Classes of special tokens and of registers, which take up attention that has nowhere to go as they do."""

Target = Pattern | Sequence[Pattern]
"""One pattern for every document, or one for each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """The queries or the keys of a call.

    Args:
        ids: Token ids, or None where the model was fed none.
        kept: True = real token; one row where all sequences are alike.
        first: Place of the first real token of each sequence.
        span: Number of places from the first to the last real token, at least 1.
        padded: Whether any token is padding.
    """

    ids: Int[Tensor, "batch length"] | None
    kept: Bool[Tensor, "_ length"]
    first: Int[Tensor, "_ 1"]
    span: Int[Tensor, "_ 1"]
    padded: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """One call, ready to be measured.

    Positions count from the first real token, so that padding on the left changes nothing.

    Args:
        call: The call itself.
        problem: Its problem, with queries, keys and values in the dtype sums are kept in.
        unmasked: The same problem without its mask.
        queries: The queries.
        keys: The keys.
        q_pos: Position of each query, counted from the first real token.
        q_real: The same, with padding moved to the nearest real token, so that no pattern is asked beyond its length.
        k_real: The same for each key.
        k_places: Places of the keys: 0, 1, ...
        q_span: Length of the sequence of the queries, from the first real token to the last.
        center: For each query the key that has the same position, as a place among the keys (it may lie outside).
        documents: Document of each batch row.
        vocabulary: Classes and special tokens, or None.
        targets: Patterns by name.
        factor: For each head a matrix R with ||R o|| = ||W_O o|| for every head output o, or None.
        sunk: Which keys belong to the sink: the first real key of each sequence, and special ones where known.
        special: Which keys are special tokens, or None where nothing tells.
        classes: Class of each key among the vocabulary's names where the caller gave it by place, or None.
        whole: Where these are only some queries of a call: all of it, and which of its queries they are.
    """

    call: Call
    problem: Problem
    unmasked: Problem
    queries: Side
    keys: Side
    q_pos: Int[Tensor, "_ q_len"]
    q_real: Int[Tensor, "_ q_len"]
    k_real: Int[Tensor, "_ kv_len"]
    k_places: Int[Tensor, " kv_len"]
    q_span: Int[Tensor, "_ 1"]
    center: Int[Tensor, "_ q_len"]
    documents: tuple[int, ...]
    vocabulary: TokenClasses | None
    targets: Mapping[str, Target]
    factor: Float[Tensor, "heads _ v_head_dim"] | None
    sunk: Bool[Tensor, "_ kv_len"]
    special: Bool[Tensor, "_ kv_len"] | None
    classes: Int[Tensor, "_ kv_len"] | None
    whole: "tuple[Scene, Int[Tensor, ' q_len']] | None" = None

    def nearest(self, rows: slice) -> tuple[int, int]:
        """Lowest and highest `center` of some queries."""
        if self.queries.padded or self.keys.padded or self.problem.places is not None:
            return int(self.center[:, rows].min()), int(self.center[:, rows].max())
        start = self.problem.q_offset or 0
        return start + rows.start, start + rows.stop - 1

    @property
    def learned_sink(self) -> int:
        """1 where something besides the keys takes weight, 0 elsewhere."""
        normaliser = self.problem.normaliser
        return int(isinstance(normaliser, Softmax) and not normaliser.plain)

    def q_bins(self) -> Int[Tensor, "_ q_len"]:
        """Bin of each query: floor(BINS * position / length)."""
        return (BINS * self.q_pos // self.q_span).clamp(0, BINS - 1)

    def k_edges(self) -> Int[Tensor, "_ edges"]:
        """First key of each bin, and the end of the last: BINS + 1 places among the keys."""
        steps = torch.arange(BINS + 1, device=self.keys.first.device)
        return self.keys.first + (steps * self.keys.span + BINS - 1) // BINS


def build_scene(
    call: Call,
    documents: Sequence[int],
    *,
    vocabulary: TokenClasses | None = None,
    targets: Mapping[str, Target] | None = None,
    factor: Tensor | None = None,
    classes: Tensor | None = None,
) -> Scene:
    """Lay out the facts of a call.

    Args:
        call: What was seen.
        documents: Document of each row the model was fed; a call may hold a whole number of rows for each (windows).
        vocabulary: Classes and special tokens, or None.
        targets: Patterns by name.
        factor: See `Scene`.
        classes: Class of each key by its place, which then counts instead of that of its id; see `Scene`.

    Raises:
        MultiheadError: The rows of the call do not belong to the rows of the batch.
    """
    problem = call.problem.widen()
    if not documents or problem.batch % len(documents):
        raise MultiheadError(
            asked="one document for each row the model was fed",
            arrived=f"{len(documents)} documents for {problem.batch} rows in {call.site.module}",
            remedy="give Batch.document one index for each row of the inputs",
        )
    each = problem.batch // len(documents)
    # Keys lie transposed in memory, as the product that makes scores reads them: it runs once for every few rows.
    problem = replace(problem, k=problem.k.transpose(-1, -2).contiguous().transpose(-1, -2))
    keys = _side(call.keys, problem.kv_len, problem.q.device)
    queries = _side(call.queries, problem.q_len, problem.q.device)
    own = queries if call.site.cross else keys
    q_pos, places = problem.q_positions()[None] - own.first, problem.k_positions()
    special = _special(keys, vocabulary, classes)
    first = (places == keys.first) & keys.kept
    return Scene(
        call=call,
        problem=problem,
        unmasked=replace(problem, mask=None),
        queries=queries,
        keys=keys,
        q_pos=q_pos,
        q_real=torch.minimum(q_pos.clamp(min=0), own.span - 1) if own.padded else q_pos,
        k_real=torch.minimum((places - keys.first).clamp(min=0), keys.span - 1),
        k_places=places,
        q_span=own.span,
        center=q_pos + keys.first,
        documents=tuple(document for document in documents for _ in range(each)),
        vocabulary=vocabulary,
        targets=targets or {},
        factor=factor,
        sunk=first if special is None else first | special,
        special=special,
        classes=classes,
    )


def _special(keys: Side, vocabulary: TokenClasses | None, classes: Tensor | None) -> Tensor | None:
    """Which keys are special tokens: by the class of their place, or else by their id."""
    if vocabulary is None:
        return None
    numbers = [place for place, name in enumerate(vocabulary.names) if name in SPECIAL]
    if classes is not None and numbers:
        return torch.isin(classes, torch.tensor(numbers, device=classes.device)) & keys.kept
    return None if keys.ids is None else look_up(keys.ids, vocabulary.special) & keys.kept


def look_up(ids: Int[Tensor, "batch length"], table: Tensor) -> Tensor:
    """`table[ids]`, for tables over the vocabulary.

    Raises:
        MultiheadError: An id lies outside the table.
    """
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= len(table):
        raise MultiheadError(
            asked=f"token ids from 0 to {len(table) - 1}, which the token classes cover",
            arrived=f"ids from {low} to {high}",
            remedy="build the classes with the tokenizer of this model, and with size= the rows of its embedding",
        )
    return table.to(ids.device)[ids]


def _side(tokens: Tokens, length: int, device: torch.device) -> Side:
    for name, given in (("ids", tokens.ids), ("keep", tokens.keep)):
        if given is not None and given.shape[1] != length:
            raise MultiheadError(
                asked=f"tokens for {length} positions",
                arrived=f"{name} of shape {tuple(given.shape)}",
                remedy="pass one entry for each query and each key of the call",
            )
    ids = None if tokens.ids is None else tokens.ids.to(device)
    if tokens.keep is None or bool(tokens.keep.all()):
        zero = torch.zeros((1, 1), dtype=torch.int64, device=device)
        kept = torch.ones((1, length), dtype=torch.bool, device=device)
        return Side(ids=ids, kept=kept, first=zero, span=zero + max(length, 1), padded=False)
    kept = tokens.keep.to(device)
    first = kept.int().argmax(-1, keepdim=True)
    last = length - 1 - kept.flip(-1).int().argmax(-1, keepdim=True)
    return Side(ids=ids, kept=kept, first=first, span=(last - first + 1).clamp(min=1), padded=True)
