import io
import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from multihead.corpus import Picture, grey_png, read_images, resize_pixels, small_png
from multihead.error import MultiheadError


def drawn(height=24, width=36):
    """A picture with a red corner, so that up and left can be told."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=-1).astype(np.uint8)
    pixels[: height // 3, : width // 3] = (250, 5, 5)
    return pixels


def read(folder, name, content=None, **options):
    file = folder / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        (Image.fromarray(drawn()) if content is None else content).save(file, **options)
    (picture,) = read_images(file)
    return picture


@pytest.mark.parametrize("name", ["p.png", "p.bmp", "p.webp"])
def test_pixels_are_those_of_the_file(tmp_path, name):
    options = {"lossless": True} if name == "p.webp" else {}
    picture = read(tmp_path, name, **options)
    assert picture.name == name
    assert np.array_equal(picture.pixels.numpy(), drawn())


def test_formats_that_lose_a_little(tmp_path):
    jpeg = read(tmp_path, "p.jpg", quality=95)
    assert np.abs(jpeg.pixels.numpy().astype(int) - drawn()).mean() < 4
    gif = read(tmp_path, "p.gif", Image.fromarray(drawn()).quantize(256))
    assert np.abs(gif.pixels.numpy().astype(int) - drawn()).mean() < 12


@pytest.mark.parametrize(("orientation", "back"), [(3, (2, 0)), (6, (1, 1)), (8, (3, 1))])
def test_pictures_are_turned_upright(tmp_path, orientation, back):
    quarter, _ = back
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(np.rot90(drawn(), quarter)))
    picture = read(tmp_path, "p.png", stored, exif=exif)
    assert np.array_equal(picture.pixels.numpy(), drawn())


def test_what_is_transparent_lies_on_white(tmp_path):
    alpha = np.full((24, 36, 1), 255, np.uint8)
    alpha[:, :10] = 0
    alpha[:, 10] = 128
    picture = read(tmp_path, "p.png", Image.fromarray(np.concatenate([drawn(), alpha], axis=2)))
    expected = drawn().astype(float)
    expected[:, :10] = 255
    expected[:, 10] = expected[:, 10] * 128 / 255 + 255 * 127 / 255
    assert np.abs(picture.pixels.numpy() - expected).max() <= 1
    palette = Image.fromarray(np.zeros((2, 2), np.uint8), mode=None).convert("P")
    palette.putpalette([9, 9, 9, 200, 0, 0])
    palette.putpixel((1, 1), 1)
    seen = read(tmp_path, "q.png", palette, transparency=0).pixels
    assert seen.reshape(-1, 3).tolist() == [[255] * 3] * 3 + [[200, 0, 0]]


def test_greys_of_sixteen_bits_keep_their_scale(tmp_path):
    levels = np.array([[0, 257, 32896], [65535, 40000, 1000]], np.uint16)
    pixels = read(tmp_path, "p.png", Image.fromarray(levels)).pixels.numpy()
    assert np.array_equal(pixels, np.repeat(np.rint(levels / 257)[..., None], 3, axis=2))


@pytest.mark.parametrize("mode", ["L", "1", "CMYK", "P"])
def test_other_kinds_of_pixels(tmp_path, mode):
    name = "p.jpg" if mode == "CMYK" else "p.png"
    image = Image.fromarray(drawn()).convert(mode)
    pixels = read(tmp_path, name, image).pixels.numpy().astype(int)
    assert np.abs(pixels - np.asarray(image.convert("RGB"))).mean() < (6 if mode == "CMYK" else 1e-9)


def test_the_first_frame_of_a_moving_picture(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    picture = read(tmp_path, "p.gif", frames[0], save_all=True, append_images=frames[1:])
    assert picture.pixels[0, 0].tolist() == [255, 0, 0]


def refused(folder, content, match):
    with pytest.raises(MultiheadError, match=match) as caught:
        read(folder, "p.png", content)
    return caught.value


def png_header(width, height):
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = b"IDAT" + zlib.compress(b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (chunk, pixels)
    )


def test_damaged_files_are_told_by_name(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(drawn(200, 200)).save(buffer, "JPEG")
    whole = buffer.getvalue()
    refused(tmp_path, b"", r"p\.png: PNG, JPEG, WEBP, BMP, GIF\n  got: no picture of these kinds \(0 bytes\)")
    refused(tmp_path, b"some text", "no picture of these kinds")
    refused(tmp_path, whole[: len(whole) // 2], "truncated")
    refused(tmp_path, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture of these kinds")
    refused(tmp_path, png_header(20, 20), r"\(53 bytes\)")


def test_a_picture_made_to_fill_the_memory_is_not_opened(tmp_path):
    assert "smaller" in refused(tmp_path, png_header(10_000, 10_000), "100000000 pixels").remedy
    assert "smaller" in refused(tmp_path, png_header(60_000, 60_000), "3600000000 pixels").remedy


def test_without_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MultiheadError, match=r"multihead\[images\]"):
        read_images(tmp_path)


def test_a_picture_knows_its_content():
    one, two = torch.zeros(2, 3, 3, dtype=torch.uint8), torch.zeros(3, 2, 3, dtype=torch.uint8)
    assert Picture("a", one).digest == Picture("b\x1b", one.clone()).digest == "2ecec42c1a2e1f2a"
    assert Picture("a", one).digest != Picture("a", two).digest
    assert Picture("b\x1b", one).name == r"b\x1b"
    for pixels in (one.float(), one[0], one[:0], torch.zeros(2, 3, 4, dtype=torch.uint8)):
        with pytest.raises((MultiheadError, TypeError)):
            Picture("a", pixels)


def test_small_pictures_are_small_and_alike():
    noise = torch.randint(0, 256, (400, 300, 3), dtype=torch.uint8)
    for pixels, sides in ((noise, None), (torch.from_numpy(drawn(400, 300)), (120, 160)), (noise[:9, :5], (5, 9))):
        png = small_png(pixels)
        with Image.open(io.BytesIO(png)) as small:
            assert len(png) <= 12_000
            assert max(small.size) <= 160
            assert sides is None or small.size == sides
            shown = np.asarray(small.convert("RGB")).astype(float)
        if sides == (120, 160):
            reference = np.asarray(Image.fromarray(pixels.numpy()).resize(sides, Image.Resampling.LANCZOS))
            assert np.abs(shown - reference).mean() < 12
    assert small_png(torch.zeros(1, 2000, 3, dtype=torch.uint8))


@pytest.mark.parametrize("width", [1, 6, 7])
def test_grey_pictures_are_what_they_say(width):
    levels = torch.randint(0, 16, (5, width), dtype=torch.uint8)
    with Image.open(io.BytesIO(grey_png(levels))) as image:
        assert image.size == (width, 5)
        assert np.array_equal(np.asarray(image.convert("L")), levels.numpy() * 17)


def test_resizing_is_pillows():
    pixels = torch.from_numpy(drawn())
    assert resize_pixels(pixels, height=24, width=36, filter_name="bicubic") is pixels
    for name in ("bilinear", "bicubic", "lanczos", "nearest", "box", "hamming"):
        ours = resize_pixels(pixels, height=9, width=50, filter_name=name).numpy()
        theirs = Image.fromarray(drawn()).resize((50, 9), getattr(Image.Resampling, name.upper()))
        assert np.array_equal(ours, np.asarray(theirs))
