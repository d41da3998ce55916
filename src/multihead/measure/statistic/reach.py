"""How far a head reaches: weight at each small distance, by distance in bins of doubling width, and what 90 % span."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.measure.part import FARTHEST, NEAR, OCTAVES, Part
from multihead.measure.scene import Scene
from multihead.measure.statistic.contract import Contribution, OfTile, with_aside
from multihead.record import Quantity

OFFSETS = range(-FARTHEST, FARTHEST + 1)
"""Distances that are told one by one."""

REACHED = 0.9 - 1e-5
"""Share of the weight that counts as 90 %: weights that make 90 % exactly must not miss it by a rounding error."""

NOTHING = 1e-12
"""Weight of a row, of all that its model gave out, that counts as none: below, rounding decides where it is."""

_SINGLE = FARTHEST


def _labels(word: str) -> list[str]:
    spans = [(2**k, 2 ** (k + 1) - 1) for k in range(OCTAVES - 1)]
    named = [f"{word} {low}" if low == high else f"{word} {low}-{high}" for low, high in spans]
    return [*named, f"{word} {2 ** (OCTAVES - 1)}+"]


LABELS = (*reversed(_labels("ahead")), "self", *_labels("back"))
SELF = OCTAVES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """What the tiles need.

    Args:
        lows: For `span90` the nearest distance of each of its bins.
        widths: And how much farther the farthest one is.
    """

    lows: Float[Tensor, " bins"]
    widths: Float[Tensor, " bins"]


def prepare(scene: Scene) -> Facts:
    """The edges of the bins."""
    device = scene.problem.q.device
    far = torch.tensor([2**k for k in range(NEAR, OCTAVES)], device=device)
    lows = torch.cat([torch.arange(_SINGLE, device=device), far]).to(scene.problem.wide)
    return Facts(
        lows=lows,
        widths=torch.where(lows < _SINGLE, 0.0, lows - 1),
    )


def take(part: Part, facts: Facts) -> tuple[Contribution, ...]:
    """Every row's weight at each small distance and on each bin, and how far it reaches."""
    offsets = part.near()
    bins = _bins(part, offsets)
    sunk = part.sunk_distances()
    all_offsets = _with(part, offsets, sunk + FARTHEST, inside=sunk.abs() <= FARTHEST)
    all_bins = _with(part, bins, _bin_of(sunk), inside=torch.ones_like(sunk, dtype=torch.bool))
    left = part.total(part.known.left)
    return (
        Contribution(part.total(all_offsets)),
        _of_left(part.total(offsets), left),
        Contribution(part.total(all_bins)),
        _of_left(part.total(bins), left),
        Contribution(part.total(_span(all_offsets, all_bins, facts))),
        Contribution(part.total(_span(offsets, bins, facts) * part.known.left), left),
    )


def _of_left(sums: Tensor, left: Tensor) -> Contribution:
    return Contribution(sums, left[..., None].expand_as(sums))


def _bins(part: Part, offsets: Tensor) -> Tensor:
    """The weight of every row on each bin, in the order of `LABELS`."""
    lows = (1, 2, 4, 8)
    back = [offsets[..., FARTHEST + low : FARTHEST + 2 * low].sum(-1) for low in lows]
    ahead = [offsets[..., FARTHEST + 1 - 2 * low : FARTHEST + 1 - low].sum(-1) for low in reversed(lows)]
    near = torch.stack([*ahead, offsets[..., FARTHEST], *back], -1)
    far_ahead, far_back = part.far()
    return torch.cat([far_ahead, near, far_back], -1)


def _bin_of(distances: Tensor) -> Tensor:
    """Place among the bins: 0 is farthest ahead."""
    # The exponent of a number tells its octave exactly.
    octave = torch.frexp(distances.abs().clamp(min=1).double())[1] - 1
    return SELF + distances.sign() * (1 + octave.clamp(max=OCTAVES - 1)) * (distances != 0)


def _with(part: Part, sums: Tensor, place: Tensor, *, inside: Tensor) -> Tensor:
    """Some sums of every row with the weights on the sink added, each at its place."""
    batch = torch.zeros_like(part.sunk.batch)[:, None, None] + part.sunk.batch[:, None, None]
    head = torch.arange(sums.shape[1], device=sums.device)[:, None]
    row = torch.arange(sums.shape[2], device=sums.device)
    at = (batch, head, row, place.clamp(0, sums.shape[-1] - 1)[:, None])
    return sums.index_put(at, part.sunk.weights * inside[:, None], accumulate=True)


def _span(offsets: Tensor, bins: Tensor, facts: Facts) -> Tensor:
    """For every row the distance within which 90 % of its weight lies."""
    single = offsets[..., FARTHEST:-1].clone()
    single[..., 1:] += offsets[..., 1:FARTHEST].flip(-1)
    back, ahead = bins[..., SELF + 1 + NEAR :], bins[..., : SELF - NEAR].flip(-1)
    masses = torch.cat([single, back + ahead], -1)
    reached = masses.cumsum(-1)
    wanted = REACHED * reached[..., -1:]
    place = (reached < wanted).sum(-1, keepdim=True).clamp(max=masses.shape[-1] - 1)
    mass = masses.gather(-1, place)
    share = (wanted - reached.gather(-1, place) + mass) / mass.clamp(min=torch.finfo(mass.dtype).tiny)
    spans = facts.lows[place] + facts.widths[place] * share.clamp(0, 1)
    # What underflows has no parts: such a row, all of whose weight is elsewhere, reaches nowhere.
    return torch.where(reached[..., -1:] > NOTHING, spans, 0.0)[..., 0]


REACH = OfTile(
    quantities=(
        *with_aside(
            Quantity(
                name="offsets",
                title="weight by offset",
                unit="share",
                formula=(
                    "mean over rows of A_i,i-o, o = query - key from -16 (ahead) to 16 (back); 0 without such a key"
                ),
                shape=(len(OFFSETS),),
                labels=tuple(str(o) for o in OFFSETS),
            ),
            "sum over rows of A_i,i-o [i-o outside of the sink] / sum of all A_ij outside of the sink",
        ),
        *with_aside(
            Quantity(
                name="distance_histogram",
                title="weight by distance",
                unit="share",
                formula="mean over rows of the weight on keys at distance 1, 2-3, 4-7, ..., 2^14 and more, either way",
                shape=(len(LABELS),),
                labels=LABELS,
            ),
            "the same over keys outside of the sink / sum of all A_ij outside of the sink",
        ),
        *with_aside(
            Quantity(
                name="span90",
                title="distance that holds 90 % of the weight",
                unit="tokens",
                formula=(
                    "mean over rows of the smallest w with sum_j A_ij [|i - j| <= w] >= 0.9 sum_j A_ij; exact up to "
                    "15, beyond w = low + (high - low) x the needed share of the weight of the octave 2^k to "
                    "2^(k+1) - 1"
                ),
            ),
            "the same over keys outside of the sink, each row counting by the weight it has there",
        ),
    ),
    prepare=prepare,
    take=take,
    of_weights=False,
)
