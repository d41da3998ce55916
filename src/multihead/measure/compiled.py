"""The sweep by the compiled kernel: one pass over the keys for a block of rows, and no weight is kept.

What it cannot take is left to the sweep in torch (`multihead.measure.sweep`), which says what every number means.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from multihead.attend import Problem, native
from multihead.attend.lowering import MaskParts, bias_parts, mask_parts, sink_logits
from multihead.measure.block import restrict
from multihead.measure.part import FARTHEST, LEAST, NEAR, OCTAVES, Found, PairSets, Part, Whole
from multihead.measure.scene import BINS, Scene
from multihead.measure.statistic.contract import OfTile
from multihead.measure.weigh import FLOOR, Rows, Sunk
from multihead.native import CProblem, Library, load, why_none
from multihead.native import statistics as kernel
from multihead.native.ops import pack_problem
from multihead.native.statistics import MOST_PAIRS, Wanted

_MOST = 1e30
"""Scores that might be larger are left to torch: their sums may overflow."""

assert (kernel.FARTHEST, kernel.OCTAVES) == (FARTHEST, OCTAVES - NEAR), "the kernel tells the same distances"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums(Part):
    """Some query rows as the kernel sums them up.

    Args:
        told: What it found.
        sets: For each group of sets of pairs its first set among all, and how many it has, by the identity of it.
    """

    told: kernel.Found
    sets: Mapping[int, tuple[int, int]]

    def length(self) -> Float[Tensor, "batch heads rows"]:
        """See `Part`."""
        return self.told.squares.sqrt()

    def near(self) -> Float[Tensor, "batch heads rows offsets"]:
        """See `Part`."""
        return self.told.offsets

    def far(self) -> tuple[Float[Tensor, "batch heads rows octaves"], Float[Tensor, "batch heads rows octaves"]]:
        """See `Part`."""
        ahead, back = self.told.octaves.chunk(2, dim=-1)
        return ahead, back

    def gaps(self) -> tuple[Float64[Tensor, "batch heads"], Float64[Tensor, "batch heads"]]:
        """See `Part`."""
        return self.total(self.told.distance), self.total(self.told.distance_absolute)

    def pooled(
        self, member: Float[Tensor, "_ kv_len bins"]
    ) -> tuple[Float64[Tensor, "batch heads bins bins"], Float64[Tensor, "batch heads bins bins"]]:
        """See `Part`."""
        return self.told.pooled, self.told.pooled_content

    def alike(self) -> Float64[Tensor, "batch heads heads"]:
        """See `Part`."""
        assert self.told.gram is not None, "it is asked for wherever heads are compared"
        return self.told.gram

    def found(self, pairs: PairSets) -> tuple[Found, ...]:
        """See `Part`."""
        first, count = self.sets[id(pairs)]
        return tuple(
            Found(
                content=self.told.pair_weight[place],
                sunk=self.told.pair_sunk[place],
                seen=self.told.pair_seen[place],
                seen_sunk=self.told.pair_seen_sunk[place],
                top=self.told.pair_top[place].bool(),
            )
            for place in range(first, first + count)
        )


def kernel_words() -> str:
    """The kernel that is here, in words: its numbers are those of its machine code."""
    library = load()
    return str(why_none()) if library is None else f"compiled kernel, {native.asked(library)[0].name.lower()}"


def why_not(scene: Scene, able: Sequence[tuple[OfTile[Any], Any]]) -> list[str]:
    """Every reason why the kernel cannot measure a call, in words; empty if it can.

    Args:
        scene: The call.
        able: What is asked, with what each statistic prepared.
    """
    problem = _problem(scene)
    with torch.no_grad():  # nothing is learned from what is measured
        reasons = native.why_not(problem)
    if reasons:
        return reasons
    reasons += [
        f"{statistic.quantities[0].name} looks at single weights" for statistic, _ in able if statistic.of_weights
    ]
    if sum(len(facts.parts(scene, slice(0, 1))) for _, facts in able if _has_pairs(facts)) > MOST_PAIRS:
        reasons.append(f"more than {MOST_PAIRS} sets of pairs are asked for")
    return reasons + _odd_numbers(problem)


def _problem(scene: Scene) -> Problem:
    """The call in its own dtype, all its rows; weights are those without dropout."""
    whole = scene if scene.whole is None else scene.whole[0]
    return replace(whole.call.problem, dropout=0.0, v=whole.call.problem.v[..., :0])


def _odd_numbers(problem: Problem) -> list[str]:
    """NaN and infinity, which must be told row by row."""
    most = [_size(problem.q), _size(problem.k)]
    score = abs(problem.scale) * math.prod(most) * problem.head_dim
    if not score < _MOST:  # NaN too
        return ["queries or keys hold NaN, infinity or numbers whose products may overflow"]
    bias = problem.bias
    if isinstance(bias, Tensor) and bias.numel() and not float(bias.amax()) < _MOST:
        return ["the bias holds NaN or infinity"]
    if bias is not None and not isinstance(bias, Tensor) and not _size(bias.weight) < _MOST:
        return [f"{bias} holds NaN, infinity or numbers too large"]
    sinks = sink_logits(problem)
    return [] if sinks is None or bool((sinks < _MOST).all()) else ["a sink is NaN or infinite"]


def _size(tensor: Tensor) -> float:
    """The largest size of a number, or NaN."""
    if not tensor.numel():
        return 0.0
    low, high = tensor.aminmax()
    return float(torch.maximum(-low, high))


def _has_pairs(facts: object) -> bool:
    return hasattr(facts, "parts")


class Kernel:
    """The kernel, ready for one call.

    Args:
        scene: The call, which it can measure.
        able: What is asked.
    """

    def __init__(self, scene: Scene, able: Sequence[tuple[OfTile[Any], Any]]) -> None:
        library = load()
        assert library is not None, "it can measure the call"
        self._library: Library = library
        self._scene = scene
        self._pairs = {id(facts): facts for _, facts in able if _has_pairs(facts)}
        self._gram = any(quantity.pairs for statistic, _ in able for quantity in statistic.quantities)
        variant, self._threads = native.asked(library)
        self.words = kernel_words()
        self._held, self._problem = self._pack(int(variant))
        self._packed = kernel.Packed(library, self._problem)
        edges = scene.k_edges()
        bins = (scene.k_places[:, None] >= edges[:, None]).sum(-1) - 1
        self._k_bins = torch.where(bins < BINS, bins, -1).int()
        self._q_bins = scene.q_bins().int()

    def _pack(self, variant: int) -> tuple[object, CProblem]:
        problem = _problem(self._scene)
        tensors = [x if x.stride(3) == 1 else x.contiguous() for x in (problem.q, problem.k, problem.v)]
        mask, bias, sinks = _mask(problem), bias_parts(problem), sink_logits(problem)
        numbers = (problem.scale, problem.softcap or 0.0, problem.q_offset or 0, bias.first)
        q, k, v = tensors
        made = pack_problem((q, k, v), mask.tensors(), bias.tensors(), sinks, numbers, (variant, self._threads))
        return (tensors, mask, bias, sinks), made

    def look(self, rows: slice) -> tuple[Sums, Whole]:
        """What some rows bring.

        Args:
            rows: The rows.
        """
        scene = self._scene
        sets, places = [], dict[int, tuple[int, int]]()
        for key, pairs in self._pairs.items():
            parts = pairs.parts(scene, rows)
            places[key] = len(sets), len(parts)
            sets += parts
        wanted = Wanted(
            rows=rows if scene.whole is None else scene.whole[1][rows],
            centers=scene.center[:, rows],
            q_kept=scene.queries.kept[:, rows] if scene.queries.padded else None,
            k_kept=scene.keys.kept if scene.keys.padded else None,
            sunk=scene.sunk,
            q_bins=self._q_bins[:, rows],
            k_bins=self._k_bins,
            bins=BINS,
            pairs=sets,
            least=LEAST,
        )
        told = kernel.find(self._library, self._problem, wanted, gram=self._gram, packed=self._packed)
        known = _rows(told)
        counted = scene.queries.kept[:, None, rows] & (known.sees >= LEAST)
        place, key = scene.sunk.expand(len(counted), -1).nonzero(as_tuple=True)
        sums = Sums(
            scene=scene,
            rows=rows,
            cols=slice(0, scene.problem.kv_len),
            sunk=Sunk(batch=place, key=key, weights=told.sunk_weights, seen=told.sunk_seen.bool()),
            counted=counted,
            all_count=bool(counted.all()),
            known=known,
            told=told,
            sets=places,
        )
        every = slice(0, scene.problem.q_len)
        own = scene if rows == every else restrict(scene, rows)
        return sums, Whole(scene=own, rows=known, columns=told.columns, leaks=bool(told.leaks.any()))


def _rows(told: kernel.Found) -> Rows:
    return Rows(
        sees=told.sees.long(),
        finite=torch.ones_like(told.sees, dtype=torch.bool),
        peak=told.peak,
        top=told.top,
        top_key=told.top_key.long(),
        entropy=told.entropy,
        sink=told.sink,
        sees_sunk=told.sees_sunk.long(),
        sunk=told.sunk,
        left=told.left,
        left_entropy=told.left_entropy,
    )


def _mask(problem: Problem) -> MaskParts:
    """The mask in parts; what an additive mask shuts is shut."""
    parts, bias = mask_parts(problem), problem.bias
    if not isinstance(bias, Tensor):
        return parts
    open_to = bias > FLOOR
    if bool(open_to.all()):
        return parts
    return replace(parts, dense=open_to if parts.dense is None else parts.dense & open_to)
