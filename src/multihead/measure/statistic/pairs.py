"""Weight on a set of pairs: what copies and targets have in common."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from multihead.measure.part import Found, Part
from multihead.measure.statistic.contract import Contribution, set_aside
from multihead.measure.tile import Tile
from multihead.record import Quantity

SPARSE = 16
"""Pairs are few when they are fewer than one in so many: they are then picked out one by one."""


def pair_quantities(name: str, words: str, condition: str) -> tuple[Quantity, ...]:
    """The quantities of a set of pairs, in the order of `contributions`.

    Args:
        name: Name of the first; the others add to it.
        words: Where the weight is, for people.
        condition: When (i, j) is a pair, for formulas.
    """
    rows = "over rows that see such a key"
    weight = Quantity(
        name=name,
        title=f"weight on {words}",
        unit="share",
        formula=f"mean of sum_j A_ij [{condition}] {rows}",
        even=f"{name}_even",
    )
    return (
        weight,
        Quantity(
            name=f"{name}_argmax",
            title=f"largest weight on {words}",
            unit="share",
            formula=f"share of rows whose largest weight (first of equals) has [{condition}], {rows}",
        ),
        Quantity(
            name=f"{name}_even",
            title=f"weight on {words}, of an even spread",
            unit="share",
            formula=(
                f"mean of (visible keys with [{condition}]) / (visible keys) {rows}; a learned sink is one more key"
            ),
        ),
        set_aside(
            weight,
            f"sum of A_ij [{condition}] over keys outside of the sink / sum of all their A_ij, "
            "over rows that see such a key there",
        ),
    )


def contributions(part: Part, found: Found) -> tuple[Contribution, ...]:
    """Weight, argmax rate, even spread, and weight with the sink set aside, of every row that sees a pair."""
    # One sum for several: for so few numbers the calls cost more than the work.
    counted, left = (
        (part.counted & seen).to(part.known.top) for seen in (found.seen > 0, found.seen > found.seen_sunk)
    )
    weight, top, even = found.content + found.sunk, found.top.to(counted), part.even(found.seen).expand_as(counted)
    weight, top, even, count = _total([weight, top, even, torch.ones_like(counted)], counted)
    content, rest = _total([found.content, part.known.left], left)
    return Contribution(weight, count), Contribution(top, count), Contribution(even, count), Contribution(content, rest)


def _total(values: Sequence[Tensor], rows: Tensor) -> tuple[Tensor, ...]:
    """Sums over some rows; no row holds NaN here, for one that does has no weight."""
    return (torch.stack(list(values)) * rows).sum(-1, dtype=torch.float64).unbind()


def hold(tile: Tile, inside: Bool[Tensor, "_ _ rows picked"], cols: slice) -> Found:
    """Holds the weights of a tile against pairs.

    Args:
        tile: The tile.
        inside: The pairs.
        cols: The keys they are given for, within those of the tile.
    """
    cut = slice(cols.start - tile.cols.start, cols.stop - tile.cols.start)
    visible, content = tile.visible[..., cut], tile.content[..., cut]
    batch, _, rows, width = content.shape
    at_sunk = _at_sunk(tile, inside, cols) & tile.sunk.seen
    top = tile.known.top_key - cut.start
    place = top.clamp(0, width - 1)
    on_top = inside.expand(*place.shape, -1).gather(-1, place[..., None])[..., 0] & (top == place)
    if inside.shape[1] == 1:
        row, query, key = inside[:, 0].expand(batch, -1, -1).nonzero(as_tuple=True)
        if SPARSE * len(row) <= batch * rows * width:
            return picked(tile, (row, query, key + cut.start), at_sunk, on_top)
    inside = inside & visible
    # Fresh memory for each product costs more than the product.
    product = torch.mul(content, inside, out=tile.scratch.view(-1)[: content.numel()].view_as(content))
    return Found(
        content=product.sum(-1),
        sunk=tile.on_sunk(at_sunk),
        seen=inside.sum(-1),
        seen_sunk=tile.sunk.total(at_sunk.long(), batch),
        top=on_top,
    )


def picked(
    tile: Tile,
    pairs: tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Int[Tensor, " pairs"]],
    at_sunk: Bool[Tensor, "sunk _ rows"],
    top: Bool[Tensor, "batch heads rows"],
) -> Found:
    """The same from a list of pairs.

    Args:
        tile: The tile.
        pairs: Batch row, query and key of each, places within the tile.
        at_sunk: Which queries see a pair with each key of the sink.
        top: Whether the largest weight of each row is on a pair.
    """
    row, query, key = pairs
    batch, _, rows = tile.content.shape[:3]
    at = row * rows + query
    weights = tile.content[row, :, query, key]
    seen = tile.visible[row if tile.visible.shape[0] > 1 else torch.zeros_like(row), :, query, key]
    return Found(
        content=_added(weights, at, batch, rows),
        sunk=tile.on_sunk(at_sunk),
        seen=_added(seen.long(), at, batch, rows),
        seen_sunk=tile.sunk.total(at_sunk.long(), batch),
        top=top,
    )


def _added(values: Tensor, at: Tensor, batch: int, rows: int) -> Tensor:
    """Values (pairs, heads) added up at their rows, (batch, heads, rows)."""
    sums = values.new_zeros((batch * rows, values.shape[1])).index_add_(0, at, values)
    return sums.view(batch, rows, -1).transpose(1, 2)


def _at_sunk(tile: Tile, inside: Tensor, cols: slice) -> Tensor:
    """Which queries have a pair with each key of the sink, (sunk, heads | 1, rows)."""
    asked = tile.sunk.key + tile.cols.start - cols.start
    place = asked.clamp(0, inside.shape[-1] - 1)
    row = tile.sunk.batch if inside.shape[0] > 1 else torch.zeros_like(place)
    return inside[row, :, :, place] & (asked == place)[:, None, None]
