"""Measure every attention head of a model: one sweep over tiles of query rows, sums per document."""

from multihead.measure.ablate import ablated, mean_outputs
from multihead.measure.batch import Batch, Span
from multihead.measure.journal import discard_journal, has_journal
from multihead.measure.lock import held
from multihead.measure.observe import Interrupted, observe
from multihead.measure.part import Part, Whole
from multihead.measure.run import Run
from multihead.measure.scene import Scene, Target, build_scene
from multihead.measure.statistic import DEFAULT, DEFAULT_TARGETS, Contribution, Missing, OfTile, OfWhole, Statistic
from multihead.measure.sweep import sweep
from multihead.measure.tile import Tile
from multihead.measure.watch import Watch, watch

__all__ = [
    "DEFAULT",
    "DEFAULT_TARGETS",
    "Batch",
    "Contribution",
    "Interrupted",
    "Missing",
    "OfTile",
    "OfWhole",
    "Part",
    "Run",
    "Scene",
    "Span",
    "Statistic",
    "Target",
    "Tile",
    "Watch",
    "Whole",
    "ablated",
    "build_scene",
    "discard_journal",
    "has_journal",
    "held",
    "mean_outputs",
    "observe",
    "sweep",
    "watch",
]
