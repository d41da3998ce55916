"""Numbers as text that a page can hold: floats, intervals and arrays in few bytes, base64."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multihead.measure.role.printed import settle
from multihead.record.heads import Array
from multihead.report.sprite import above_diagonal

TOP = 254
"""Largest step of a packed array; 255 stands for no value."""
FINE = 65534
"""Largest step of a packed interval; 65535 stands for no value."""
MANY = 400
"""From more heads than this on maps are pooled to half as many bins each way."""


def floats(values: Array) -> str:
    """Numbers with the digits the page keeps, as little-endian 32-bit floats; NaN for none."""
    return _text(np.array([settle(float(v)) for v in values.ravel()], dtype="<f4"))


def integers(values: NDArray[np.int64]) -> str:
    """Whole numbers as little-endian 32-bit ones."""
    return _text(values.astype("<i4"))


def ends(low: Array, high: Array) -> dict[str, object] | None:
    """Intervals in sixteen bits: v = low + (high - low) * q / 65534, lower and upper end by turns; None without any."""
    pairs = np.stack([low, high], axis=-1)
    known = np.isfinite(pairs).all(axis=-1, keepdims=True) & np.ones(2, dtype=np.bool_)
    if not (known.any() and (high[known[:, 0]] > low[known[:, 0]]).any()):
        return None
    bottom, top = float(pairs[known].min()), float(pairs[known].max())
    steps = np.where(known, (np.where(known, pairs, bottom) - bottom) / (top - bottom) * FINE, FINE + 1)
    return {"low": bottom, "high": top, "data": _text(np.rint(steps).astype("<u2"))}


def pack(values: Array, *, keep: Sequence[int] | None = None) -> dict[str, object]:
    """An array a head in eight bits: v = low + (high - low) * (q / 254)^power, 255 for no value.

    Args:
        values: (heads, *shape).
        keep: Places of the flattened shape that are stored; None for all.

    Returns:
        `low`, `high`, `power` (2 where nothing is negative, so that small weights keep their digits), `data` in base64.
    """
    flat = values.reshape(len(values), -1)
    flat = flat if keep is None else flat[:, list(keep)]
    known = np.isfinite(flat)
    power = 1 if (flat[known] < 0).any() else 2
    low = float(flat[known].min()) if power == 1 else 0.0
    high = float(flat[known].max()) if known.any() else 0.0
    span = high - low
    part = np.where(known, (flat - low) / span if span > 0 else 0.0, 0.0)
    steps = np.where(known, np.rint(np.clip(part, 0.0, 1.0) ** (1 / power) * TOP), TOP + 1).astype(np.uint8)
    return {"low": low, "high": high, "power": power, "data": _text(steps)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Maps:
    """The average maps of all heads.

    Args:
        plain: (heads, rows, columns).
        content: The same with the sink set aside, or None where that was not measured.
        sink: Weight of each row of a map on the sink, (heads, rows), or None.
    """

    plain: Array
    content: Array | None
    sink: Array | None

    def pooled(self) -> "Maps":
        """Half as many rows and columns: mean over two rows, sum over two columns."""
        if self.plain.shape[1] % 2 or self.plain.shape[2] % 2 or (self.sink is None) != (self.content is None):
            return self
        plain, content, sink = _halved(self.plain), self.content, self.sink
        if content is None or sink is None:
            return Maps(plain=plain, content=None, sink=None)
        left = np.nan_to_num(1.0 - sink)
        share = _mean_of_two(left)
        summed = _halved(np.nan_to_num(content) * left[..., None])
        content = np.divide(summed, share[..., None], out=np.zeros_like(summed), where=share[..., None] > 0)
        return Maps(plain=plain, content=content, sink=1.0 - share)


def pack_maps(maps: Maps, *, causal: bool) -> dict[str, object]:
    """Both kinds of map in little more room than one.

    Where the map with the sink set aside and the weight on the sink by row are known, the whole map is
    `content * (1 - sink)` and, in few columns, what lies on the sink: only these columns are stored besides.
    """
    shape = (maps.plain.shape[1], maps.plain.shape[2])
    keep = seen_cells(shape) if causal else None
    facts: dict[str, object] = {"shape": list(shape), "lower": causal}
    if maps.content is None or maps.sink is None:
        return facts | {"plain": pack(maps.plain, keep=keep)}
    content, sink = np.nan_to_num(maps.content), np.nan_to_num(maps.sink)
    rest = np.nan_to_num(maps.plain) - content * (1.0 - sink)[..., None]
    columns = [int(c) for c in np.flatnonzero(np.abs(rest).max(axis=(0, 1)) > 1e-3)]
    content = np.where(np.isnan(maps.plain), np.nan, content)
    facts |= {"content": pack(content, keep=keep), "sink": pack(sink)}
    if len(columns) > shape[1] // 3:  # the sink lies everywhere: both maps are stored
        return facts | {"plain": pack(maps.plain, keep=keep)}
    return facts | {"columns": columns, "extra": pack(np.clip(rest[..., columns], 0.0, None))}


def seen_cells(shape: tuple[int, int]) -> list[int]:
    """Places in a flattened map that a head which only looks back can reach."""
    return [int(i) for i in np.flatnonzero(~above_diagonal(*shape))]


def _mean_of_two(rows: Array) -> Array:
    return rows.reshape(*rows.shape[:-1], -1, 2).mean(axis=-1)


def _halved(maps: Array) -> Array:
    heads, rows, columns = maps.shape
    return maps.reshape(heads, rows // 2, 2, columns // 2, 2).sum(axis=4).mean(axis=2)


def _text(array: NDArray[np.generic]) -> str:
    return base64.b64encode(array.tobytes()).decode()
