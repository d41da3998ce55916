"""From pictures to batches: resized and normalised as the model's processor does, one document a picture."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from multihead.corpus import Files, Picture, TokenClasses, resize_pixels, small_png
from multihead.error import MultiheadError
from multihead.hooks import Call, watching
from multihead.interop import PictureFacts, picture_part
from multihead.measure import Batch, Span
from multihead.pattern import Pattern, pairs, same_token
from multihead.record import Document
from multihead.workflow.media import EXAMPLES, EncodedMedia, at_rest, place_of

PLACES = ("special", "register", "patch")
"""Classes of the places of a picture: CLS (and DeiT's distillation token), register tokens, patches."""

LARGEST_GRID = 8
"""Rows and columns of units on the page; finer patches are taken together in squares."""

# More than these in front of the patches are no tokens of their own kind but another way of reading a picture.
_MOST_BEFORE = 16
_WINDOWS = "attention stays within windows or is pooled: the places of a call are not the patches of the picture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What stands at each place of the model's input.

    Args:
        special: CLS and other tokens without a place on the picture; they come first.
        registers: Register tokens, next.
        rows: Rows of patches, row by row after these.
        columns: Columns of patches.
    """

    special: int
    registers: int
    rows: int
    columns: int

    @property
    def before(self) -> int:
        """Places before the first patch."""
        return self.special + self.registers

    @property
    def places(self) -> int:
        """Places in all."""
        return self.before + self.rows * self.columns


def encode_pictures(
    model: nn.Module, facts: PictureFacts, pictures: Files[Picture] | Sequence[Picture]
) -> EncodedMedia:
    """Make pictures ready for a model, and say which place of its input is what.

    One picture is run first, to see how many places the attention has: what is not a patch stands in front of them.
    Where attention stays within windows (Swin), places have no classes and no targets; `remarks` says so.

    Args:
        model: A model that reads pictures, or has a part that does.
        facts: What it wants of a picture.
        pictures: What to read; each is asked for once.

    Returns:
        One document and batch a picture, places of the classes `PLACES`, the targets of `patch_targets`, and for the
        first pictures a span over the patches.

    Raises:
        MultiheadError: There is no picture, the model reads none, or it does not take pictures of this size.

    Example:
        >>> encode_pictures(model, opened.pictures, read_images("photos/")).targets.keys()  # doctest: +SKIP
        dict_keys(['same_row', 'same_column', 'neighbour'])
    """
    part = picture_part(model)
    if part is None or not len(pictures):
        raise MultiheadError(
            asked="pictures, and a model that reads them",
            arrived=f"{len(pictures)} pictures for {type(model).__name__}",
            remedy="pass a list of pictures, and a model of pictures (ViT, DINOv2, CLIP's vision part)",
        )
    layout: Layout | None = None
    documents: list[Document] = []
    batches: list[Batch] = []
    for index, picture in enumerate(pictures):
        framed = frame_picture(picture.pixels, facts)
        batch = Batch(inputs={"pixel_values": _values(part, framed, facts)}, document=(index,))
        if not index:
            places = _places(part, batch, facts)
            layout = _layout(places, facts)
        if layout is not None:
            spans = (_span(framed, layout),) if index < EXAMPLES else ()
            batch = replace(batch, classes={"pixel_values": _classes(layout)}, spans=spans)
        batches.append(batch)
        count = facts.grid[0] * facts.grid[1] if layout is None else layout.places
        documents.append(Document(name=picture.name, digest=picture.digest, tokens=count))
    return EncodedMedia(
        model=part,
        documents=tuple(documents),
        batches=tuple(batches),
        classes=None if layout is None else _names(),
        targets={} if layout is None else patch_targets(layout),
        remarks=(_WINDOWS,) if layout is None else (),
    )


def frame_picture(
    pixels: UInt8[Tensor, "height width 3"], facts: PictureFacts
) -> UInt8[Tensor, "new_height new_width 3"]:
    """What the model sees of a picture: resized, then cut around the middle (black where it is smaller).

    Args:
        pixels: The picture.
        facts: What the model wants.
    """
    height, width = pixels.shape[:2]
    if isinstance(facts.resize, int):
        shorter = min(height, width)
        height, width = (max(1, side * facts.resize // shorter) for side in (height, width))
    elif facts.resize is not None:
        height, width = facts.resize
    resized = resize_pixels(pixels, height=height, width=width, filter_name=facts.filter)
    above, left = (facts.height - height + 1) // 2, (facts.width - width + 1) // 2
    below, right = facts.height - height - above, facts.width - width - left
    # Negative padding cuts.
    return torch.nn.functional.pad(resized.movedim(-1, 0), (left, right, above, below)).movedim(0, -1).contiguous()


def patch_targets(layout: Layout) -> dict[str, Pattern]:
    """Where heads of pictures often look: patches of the same row, of the same column, and the 8 around.

    A patch itself is in none of them (it is the target `self`), nor are tokens without a place on the picture. What is
    stored grows with the number of patches, not with its square.

    Args:
        layout: What stands at each place.

    Example:
        >>> patch_targets(Layout(special=1, registers=0, rows=2, columns=2))["same_row"].mask(5, 5)[0, 0].int().tolist()
        [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
    """
    place = torch.arange(layout.rows * layout.columns)
    row, column = place // layout.columns, place % layout.columns
    # Numbers that nothing shares keep the tokens without a place from matching anything.
    alone = -1 - torch.arange(layout.before)
    around: list[Tensor] = []
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            there = (row + down >= 0) & (row + down < layout.rows)
            there &= (column + across >= 0) & (column + across < layout.columns)
            if down or across:
                key = place + down * layout.columns + across
                around.append(torch.stack([place, key], dim=1)[there])
    return {
        "same_row": same_token(torch.cat([alone, row])),
        "same_column": same_token(torch.cat([alone, column])),
        "neighbour": pairs(torch.cat(around) + layout.before),
    }


def _values(model: nn.Module, framed: Tensor, facts: PictureFacts) -> Float[Tensor, "1 3 height width"]:
    device, dtype = place_of(model)
    scaled = framed.float() * facts.scale
    values = (scaled - torch.tensor(facts.mean)) / torch.tensor(facts.std)
    return values.movedim(-1, 0)[None].contiguous().to(device, dtype)


def _places(model: nn.Module, batch: Batch, facts: PictureFacts) -> frozenset[int]:
    """How many places the self-attention of a model has, over its layers."""
    seen: set[int] = set()

    def look(call: Call) -> None:
        # A pooling layer has one query and many keys.
        if call.problem.q_len == call.problem.kv_len and not call.site.cross:
            seen.add(call.problem.q_len)

    try:
        with at_rest(model), watching(model, look):
            model(**batch.inputs)
    except MultiheadError:
        raise
    # A model can refuse a picture in any way; it is told in its words.
    except Exception as fault:
        raise MultiheadError(
            asked=f"{type(model).__name__} to read a picture of {facts.height} x {facts.width} pixels",
            arrived=f"{type(fault).__name__}: {str(fault).strip().splitlines()[0] if str(fault).strip() else ''}",
            remedy="make the size in preprocessor_config.json that of the model's config.json",
        ) from fault
    return frozenset(seen)


def _layout(places: frozenset[int], facts: PictureFacts) -> Layout | None:
    """What stands where, or None if the places of a call are not the patches of the picture."""
    rows, columns = facts.grid
    before = max(places, default=0) - rows * columns
    if len(places) != 1 or not facts.registers <= before <= _MOST_BEFORE:
        return None
    return Layout(special=before - facts.registers, registers=facts.registers, rows=rows, columns=columns)


def _classes(layout: Layout) -> Tensor:
    counts = torch.tensor([layout.special, layout.registers, layout.rows * layout.columns])
    return torch.repeat_interleave(torch.arange(len(PLACES)), counts)[None]


def _names() -> TokenClasses:
    """The names alone: pictures have no vocabulary."""
    none = torch.zeros(0, dtype=torch.int64)
    return TokenClasses(names=PLACES, table=none, special=none.bool(), marks="")


def _span(framed: Tensor, layout: Layout) -> Span:
    """All patches of a picture, those of a fine grid taken together in squares."""
    side = math.ceil(max(layout.rows, layout.columns) / LARGEST_GRID)
    rows, columns = math.ceil(layout.rows / side), math.ceil(layout.columns / side)
    units: Iterable[int] = (
        (row // side) * columns + column // side for row in range(layout.rows) for column in range(layout.columns)
    )
    return Span(
        row=0,
        start=layout.before,
        units=tuple(units),
        texts=tuple(f"r{row + 1} c{column + 1}" for row in range(rows) for column in range(columns)),
        side="pixel_values",
        grid=(rows, columns),
        picture=small_png(framed),
    )
