"""From sums to values: means, largest values, cosines between heads of a layer."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multihead.record.address import HeadAddress
from multihead.record.quantity import Quantity

Array = NDArray[np.float64]


def in_order(arrays: Array) -> Array:
    """Sum over documents one after another: numpy's pairwise sum would depend on how many there are."""
    total = np.zeros(arrays.shape[1:])
    for one in arrays:
        total = total + one
    return total


def largest(sums: Array, counts: Array) -> Array:
    """Largest value over documents; NaN where no row stands behind any."""
    top = np.where(counts > 0, sums, -np.inf).max(axis=0, initial=-np.inf)
    return np.where((counts > 0).any(axis=0), top, np.nan)


def value_of(quantity: Quantity, heads: Sequence[HeadAddress], sums: Array, counts: Array) -> Array:
    """Values from sums and counts that were added up, each (..., heads, *shape); NaN where nothing stands behind.

    Args:
        quantity: What they are of; not one whose `fold` is "max".
        heads: Every head, whole layers.
        sums: The sums.
        counts: The counts.
    """
    if quantity.fold == "cosine":
        return _cosine(heads, sums, counts)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def _cosine(heads: Sequence[HeadAddress], sums: Array, counts: Array) -> Array:
    """S[h, g] / sqrt(S[h, h] S[g, g]) within every layer."""
    width = sums.shape[-1]
    place = {address: i for i, address in enumerate(heads)}
    partner = np.array([[place.get(HeadAddress(a.stack, a.layer, g), -1) for g in range(width)] for a in heads])
    partner = partner.reshape(len(heads), width)
    own = np.array([address.head for address in heads], dtype=int)
    length = np.take_along_axis(sums, own.reshape(-1, 1) + np.zeros(sums.shape[:-1], int)[..., None], -1)[..., 0]
    lengths = np.where(partner >= 0, length[..., np.maximum(partner, 0)], 0.0) if len(heads) else sums
    product = length[..., None] * lengths
    able = (counts > 0) & (length[..., None] > 0) & (lengths > 0)
    return np.divide(
        sums, np.sqrt(product, where=able, out=np.ones_like(sums)), out=np.full(sums.shape, np.nan), where=able
    )
