"""Pictures to measure on, from files: upright, without transparency, eight bits a colour."""

import io
import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from multihead.corpus.files import Files, bytes_of, find_files, shown_name
from multihead.corpus.text import digest_of
from multihead.error import MultiheadError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
"""Endings of the files that are read from folders; a file named by itself is read whatever its ending."""

# No other formats are tried: some of Pillow's readers start other programs.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
_WIDE = ("I", "I;16", "I;16L", "I;16B", "I;16N")

THUMBNAIL, THUMBNAIL_BYTES = 160, 12_000
"""Longest side of a small picture for the page, and the bytes it may take."""

_COLOURS = (128, 64, 32, 16)
_SHRINK = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One picture.

    Args:
        name: File name, unique within one reading.
        pixels: Red, green and blue from 0 to 255 (height, width, 3).

    Attributes:
        digest: First 16 hex digits of the SHA-256 of its size and pixels.

    Example:
        >>> Picture("black", torch.zeros(2, 3, 3, dtype=torch.uint8)).digest
        '2ecec42c1a2e1f2a'
    """

    name: str
    pixels: UInt8[Tensor, "height width 3"]
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.pixels.dtype is not torch.uint8 or self.pixels.ndim != 3 or 0 in self.pixels.shape:
            raise _not_pixels(self.name, f"{self.pixels.dtype} of shape {tuple(self.pixels.shape)}")
        if self.pixels.shape[2] != 3:
            raise _not_pixels(self.name, f"{self.pixels.shape[2]} colours, shape {tuple(self.pixels.shape)}")
        object.__setattr__(self, "name", shown_name(self.name))
        height, width, _ = self.pixels.shape
        content = self.pixels.cpu().contiguous().numpy().tobytes()
        object.__setattr__(self, "digest", digest_of(f"{height}x{width}:".encode() + content))


def read_images(paths: str | Path | Sequence[str | Path]) -> Files[Picture]:
    """Find pictures in files and folders; each is read when it is asked for.

    PNG, JPEG, WebP, BMP and GIF (the first frame) are read. A picture is turned upright as its EXIF orientation says,
    put on white where it is transparent, and brought to eight bits of red, green and blue; colour profiles are left
    aside. Folders are read through in the order of names; other files are listed in `skipped`.

    Args:
        paths: Files and folders. A file met twice is taken once.

    Returns:
        The pictures, with distinct names.

    Raises:
        MultiheadError: A path does not exist, there is no picture, or Pillow is not installed. When a picture is asked
            for: its file is damaged, cut off, of another kind, or larger than about 90 million pixels.

    Example:
        >>> [picture.name for picture in read_images("photos/")]  # doctest: +SKIP
        ['cat.jpg', 'dog.png']
    """
    _pillow()
    return find_files(paths, suffixes=SUFFIXES, kind="pictures", read=read_image)


def read_image(file: Path, name: str) -> Picture:
    """Read one picture.

    Args:
        file: Where it lies.
        name: What to call it.

    Raises:
        MultiheadError: See `read_images`.
    """
    pillow = _pillow()
    content = bytes_of(file, kind="a picture")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)
            with pillow.open(io.BytesIO(content), formats=_FORMATS) as opened:
                opened.load()
                pixels = _rgb(pillow, opened)
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as fault:
        raise _unread(file, str(fault), "make it smaller first; models read some hundred pixels a side") from fault
    # A damaged file can raise anything: OSError, SyntaxError, ValueError, EOFError, struct.error, ...
    except Exception as fault:
        told = str(fault).splitlines()[0] if str(fault) else ""
        kind = "no picture of these kinds" if type(fault) is pillow.UnidentifiedImageError else type(fault).__name__
        arrived = kind if type(fault) is pillow.UnidentifiedImageError else f"{kind}: {told}"
        raise _unread(file, f"{arrived} ({len(content)} bytes)", "get the file again, or leave it out") from fault
    return Picture(name, torch.from_numpy(pixels))


def resize_pixels(
    pixels: UInt8[Tensor, "height width 3"], *, height: int, width: int, filter_name: str
) -> UInt8[Tensor, "new_height new_width 3"]:
    """Resize a picture with one of Pillow's filters, as processors of models do.

    Args:
        pixels: The picture.
        height: New height.
        width: New width.
        filter_name: `"bilinear"`, `"bicubic"`, ...

    Raises:
        MultiheadError: Pillow is not installed.
    """
    if tuple(pixels.shape[:2]) == (height, width):
        return pixels
    pillow = _pillow()
    resized = pillow.fromarray(pixels.numpy()).resize((width, height), pillow.Resampling[filter_name.upper()])
    return torch.from_numpy(np.array(resized))


def small_png(pixels: UInt8[Tensor, "height width 3"]) -> bytes:
    """A picture as a small PNG: its longest side is at most `THUMBNAIL`, and it takes at most `THUMBNAIL_BYTES`.

    Colours are brought down to a palette, and where that does not do, the size.

    Args:
        pixels: The picture.

    Raises:
        MultiheadError: Pillow is not installed.
    """
    pillow = _pillow()
    whole: Image = pillow.fromarray(pixels.numpy())
    longest = float(min(THUMBNAIL, max(whole.size)))
    while True:
        ratio = longest / max(whole.size)
        size = max(1, round(whole.width * ratio)), max(1, round(whole.height * ratio))
        small = whole.resize(size, pillow.Resampling.LANCZOS)
        for colours in _COLOURS:
            target = io.BytesIO()
            small.quantize(colours).save(target, "PNG", optimize=True)
            if target.tell() <= THUMBNAIL_BYTES:
                return target.getvalue()
        longest *= _SHRINK


def grey_png(levels: UInt8[Tensor, "height width"]) -> bytes:
    """A PNG of sixteen greys, written without Pillow.

    Args:
        levels: From 0, black, to 15, white.
    """
    height, width = levels.shape
    padded = torch.nn.functional.pad(levels, (0, width % 2))
    packed = (padded[:, 0::2] << 4) | padded[:, 1::2]
    # Every line begins with the number of its filter: 0, none.
    lines = torch.nn.functional.pad(packed, (1, 0)).contiguous().cpu().numpy().tobytes()
    header = struct.pack(">IIBBBBB", width, height, 4, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _rgb(pillow: Any, image: "Image") -> "np.ndarray[Any, np.dtype[np.uint8]]":
    from PIL import ImageOps

    upright: Any = ImageOps.exif_transpose(image)
    if upright.mode in _WIDE:
        # Sixteen bits a grey. Pillow's own conversion would cut at 255.
        grey = np.rint(np.asarray(upright).astype(np.float64).clip(0, 65535) / 257).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if "transparency" in upright.info or upright.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        see_through = upright.convert("RGBA")
        ground = pillow.new("RGBA", see_through.size, "white")
        upright = pillow.alpha_composite(ground, see_through)
    return np.array(upright.convert("RGB"))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as missing:
        raise MultiheadError(
            asked="to read and resize pictures", arrived=str(missing), remedy="pip install 'multihead[images]' (Pillow)"
        ) from missing
    return Image


def _unread(file: Path, arrived: str, remedy: str) -> MultiheadError:
    return MultiheadError(asked=f"a picture in {file}: {', '.join(_FORMATS)}", arrived=arrived, remedy=remedy)


def _not_pixels(name: str, arrived: str) -> MultiheadError:
    return MultiheadError(
        asked=f"pixels of the picture {name}: torch.uint8 of shape (height, width, 3), none of them 0",
        arrived=arrived,
        remedy="convert it: torch.from_numpy(np.array(image.convert('RGB')))",
    )
