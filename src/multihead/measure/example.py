"""Stretches of what was fed, with the strongest links of every head on them, for the reader of a record."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from multihead.hooks import Call, Tokens
from multihead.measure.batch import Batch, Span
from multihead.measure.scene import Scene
from multihead.measure.sweep import columns_of, sight_of
from multihead.measure.weigh import find_sunk, weigh
from multihead.record import Example

LINKS = 4
"""Links that are kept of each query unit."""

Layer = tuple[str, int, int]
"""Stack, layer, and the first of those of its heads that were measured together."""

_ROWS = 64
"""Query rows that are weighed together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fed:
    """A batch, and its place among the batches of a run."""

    place: int
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """What the heads of one layer make of one stretch; see `multihead.record.Example` for the arrays.

    Args:
        batch: Place of the batch among those of the run.
        queries: Place among the batch's spans of the one the queries are of.
        keys: Place of the one the keys are of; the same in self-attention.
        places: Key unit of each link, strongest first; -1 where there is no further one.
        weights: Weight of each link.
        sink: Weight of each query unit on the sink.
        elsewhere: Weight of each query unit on other keys that belong to no unit of the stretch.
    """

    batch: int
    queries: int
    keys: int
    places: NDArray[np.int16]  # (heads, queries, links)
    weights: NDArray[np.float32]  # (heads, queries, links)
    sink: NDArray[np.float32]  # (heads, queries)
    elsewhere: NDArray[np.float32]  # (heads, queries)


def classes_of(call: Call, batch: Batch) -> Int[Tensor, "batch kv_len"] | None:
    """The classes that a batch tells of the keys of a call, or None where it tells none of them."""
    for name, classes in (batch.classes or {}).items():
        if classes.shape == (call.problem.batch, call.problem.kv_len) and _is_of(name, call.keys, classes, batch):
            return classes.to(call.problem.q.device)
    return None


def see_spans(scene: Scene, fed: Fed) -> list[Seen]:
    """The spans of a batch as one call sees them: in self-attention each by itself, else a row's pairs of spans.

    Args:
        scene: The call, all its rows.
        fed: The batch.
    """
    call, batch, found = scene.call, fed.batch, list[Seen]()
    if scene.problem.batch != len(batch.document):
        return found
    cross = call.site.cross
    for place, span in enumerate(batch.spans):
        if not _shows(span, call.queries, scene.problem.q_len, batch, cross=cross):
            continue
        others = [n for n, other in enumerate(batch.spans) if other.row == span.row] if cross else [place]
        for key_place in others:
            keys = batch.spans[key_place]
            if _shows(keys, call.keys, scene.problem.kv_len, batch, cross=cross):
                found.append(_seen(scene, span, keys, at=(fed.place, place, key_place)))
    return found


def examples_of(
    seen: Mapping[Layer, Sequence[Seen]],
    heads: Mapping[Layer, int],
    batches: Sequence[Batch],
    finished: Sequence[int],
) -> tuple[Example, ...]:
    """The examples of a record: the layers of a stack side by side, in the order of documents and batches.

    Args:
        seen: For each layer what it made of the spans.
        heads: For each layer the place of its first head among all heads.
        batches: All batches of the run.
        finished: The documents of the record, in order.
    """
    joined: dict[tuple[int, int, int, str], dict[Layer, Seen]] = {}
    for layer, parts in seen.items():
        for part in parts:
            joined.setdefault((part.batch, part.queries, part.keys, layer[0]), {})[layer] = part
    order = {document: place for place, document in enumerate(finished)}
    stacks = list(dict.fromkeys(layer[0] for layer in heads))
    found: list[tuple[tuple[int, ...], Example]] = []
    for (place, query, key, stack), layers in joined.items():
        batch = batches[place]
        document = order.get(batch.document[batch.spans[query].row])
        if document is not None:
            example = _example(document, stack, (batch.spans[query], batch.spans[key]), layers, heads)
            found.append(((document, place, query, key, stacks.index(stack)), example))
    return tuple(example for _, example in sorted(found, key=lambda pair: pair[0]))


def _example(
    document: int,
    stack: str,
    spans: tuple[Span, Span],
    layers: Mapping[Layer, Seen],
    heads: Mapping[Layer, int],
) -> Example:
    queries, keys = spans
    parts = sorted(layers.items(), key=lambda item: heads[item[0]])
    numbers = [heads[layer] + head for layer, part in parts for head in range(len(part.sink))]
    return Example(
        document=document,
        start=queries.before + queries.start,
        stack=stack,
        heads=tuple(numbers),
        queries=queries.texts,
        keys=keys.texts,
        places=np.concatenate([part.places for _, part in parts]),
        weights=np.concatenate([part.weights for _, part in parts]),
        sink=np.concatenate([part.sink for _, part in parts]),
        elsewhere=np.concatenate([part.elsewhere for _, part in parts]),
        grid=keys.grid,
        picture=keys.picture,
    )


def _shows(span: Span, tokens: Tokens, length: int, batch: Batch, *, cross: bool) -> bool:
    """Whether the tokens on one side of a call are those a span is of."""
    classes = (batch.classes or {}).get(span.side)
    if span.start + len(span.units) > length or (classes is not None and classes.shape[1] != length):
        return False
    # What has no ids is known by its length, which between two sequences must be told.
    return _is_of(span.side, tokens, classes, batch) and (tokens.ids is not None or not cross or classes is not None)


def _is_of(name: str, tokens: Tokens, classes: Tensor | None, batch: Batch) -> bool:
    """Whether tokens are those of an input: the same ids, or neither has any."""
    given = batch.inputs.get(name)
    of_ids = given is not None and given.ndim == 2 and not given.is_floating_point()
    if tokens.ids is None or not of_ids or given is None:
        return tokens.ids is None and not of_ids and (given is not None or classes is not None)
    return given.shape == tokens.ids.shape and bool((given.to(tokens.ids.device) == tokens.ids).all())


def _seen(scene: Scene, queries: Span, keys: Span, *, at: tuple[int, int, int]) -> Seen:
    parts = list(_pieces(scene, queries, keys))
    link, sink, elsewhere = (torch.cat([part[n] for part in parts], 1) for n in range(3))
    # The mean over the pieces of each query unit.
    member = _members(queries, sink)
    mean = member / member.sum(0).clamp(min=1.0)
    of_units = mean.T @ link
    strongest, place = torch.sort(of_units, dim=-1, descending=True, stable=True)
    strongest, place = strongest[..., :LINKS], place[..., :LINKS].masked_fill(strongest[..., :LINKS] <= 0, -1)
    batch, query, key = at
    return Seen(
        batch=batch,
        queries=query,
        keys=key,
        places=place.cpu().numpy().astype(np.int16),
        weights=strongest.cpu().numpy().astype(np.float32),
        sink=(sink @ mean).cpu().numpy().astype(np.float32),
        elsewhere=(elsewhere @ mean).cpu().numpy().astype(np.float32),
    )


def _pieces(
    scene: Scene, queries: Span, keys: Span
) -> Iterator[
    tuple[
        Float[Tensor, "heads rows units"],
        Float[Tensor, "heads rows"],
        Float[Tensor, "heads rows"],
    ]
]:
    """Weight of single queries on the key units, on the sink and on everything else."""
    problem, stop = scene.problem, queries.start + len(queries.units)
    member = _members(keys, problem.q)
    whole = member.new_zeros((problem.kv_len, member.shape[1]))
    whole[keys.start : keys.start + len(keys.units)] = member
    for start in range(queries.start, stop, _ROWS):
        rows = slice(start, min(start + _ROWS, stop))
        cols = columns_of(problem, rows)
        allowed, visible = sight_of(scene, rows, cols)
        sunk = find_sunk(scene.sunk[:, cols], problem.batch, problem.q)
        content, sunk, known = weigh(scene.unmasked.scores(rows, cols), allowed, visible, problem.normaliser, sunk)
        own, inside = content[queries.row], whole[cols]
        yield own @ inside, (known.sunk + known.sink)[queries.row], own @ (1 - inside.sum(-1))


def _members(span: Span, like: Tensor) -> Float[Tensor, "places units"]:
    """1 where a place of the span belongs to a unit."""
    units = torch.tensor(span.units, device=like.device)
    return (units[:, None] == torch.arange(len(span.texts), device=like.device)).to(like)
