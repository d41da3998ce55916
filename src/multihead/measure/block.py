"""Blocks of query rows: units of intervals where documents are few, and what a statistic of outputs sees at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from multihead.attend.problem import Index
from multihead.hooks import Tokens
from multihead.measure.part import Whole
from multihead.measure.scene import Scene, Side
from multihead.measure.statistic.contract import Contribution, Missing
from multihead.record import Sampling

BLOCK = 512
"""Query rows in a block."""

LEAST_BLOCK = 64
"""A last block with fewer rows joins the one before it."""

SPREAD = tuple(field.name for field in fields(Sampling))
"""What is told of the uncertainty of sums, in order."""

Taken = Mapping[str, Contribution | Missing]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """What one block of rows brought.

    Args:
        wholes: What was seen: one, or one for each group of sampled rows.
        taken: For each quantity what it adds, or why it adds nothing.
        spread: Where only some rows were weighed, for each quantity how uncertain its sum and its count are, in the
            order of `SPREAD`.
        told: What measured the weights, in words.
    """

    wholes: tuple[Whole, ...]
    taken: Taken
    spread: Mapping[str, Float64[Tensor, "batch fields heads *shape"]] = field(default_factory=dict[str, Tensor])
    told: str = ""


def cut_blocks(length: int) -> list[slice]:
    """Blocks of `BLOCK` rows; the last one is shorter, or longer by less than `LEAST_BLOCK` rows."""
    starts = list(range(0, length, BLOCK))
    if len(starts) > 1 and length - starts[-1] < LEAST_BLOCK:
        starts.pop()
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], length], strict=True)]


def restrict(scene: Scene, rows: Index) -> Scene:
    """The same call for some of its query rows; keys, positions and bins stay those of the whole call.

    Args:
        scene: The call.
        rows: Indices of queries.
    """
    call, problem = scene.call, scene.problem.restrict(rows)
    whole, places = scene.whole or (scene, torch.arange(scene.problem.q_len))
    return replace(
        scene,
        call=replace(
            call,
            problem=call.problem.restrict(rows),
            output=call.output[:, rows],
            residual=None if call.residual is None else call.residual[:, rows],
            queries=Tokens(
                ids=None if call.queries.ids is None else call.queries.ids[:, rows],
                keep=None if call.queries.keep is None else call.queries.keep[:, rows],
            ),
        ),
        problem=problem,
        unmasked=replace(problem, mask=None),
        queries=_some(scene.queries, rows),
        q_pos=scene.q_pos[:, rows],
        q_real=scene.q_real[:, rows],
        center=scene.center[:, rows],
        whole=(whole, places[rows]),
    )


def _some(side: Side, rows: Index) -> Side:
    return replace(side, ids=None if side.ids is None else side.ids[:, rows], kept=side.kept[:, rows])
