"""`multihead checkup` on pictures and on sound that are made here, with real models."""

import json
import wave

import numpy as np
import pytest
from PIL import Image

import multihead as mh
from multihead.cli import run
from multihead.corpus import is_installed


def needs(name):
    if not is_installed(name):
        pytest.skip(f"not installed: multihead models --get {name}")


def draw(folder):
    """A disc, and bars."""
    y, x = np.mgrid[0:120, 0:160]
    for name, inside in (("disc", (x - 80) ** 2 + (y - 60) ** 2 < 30**2), ("bars", x % 40 < 20)):
        pixels = np.where(inside[..., None], (200, 60, 30), (230, 230, 210)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")


def sound(path):
    """Two seconds of tones that rise, with a pause."""
    time = np.arange(32000) / 16000
    tone = np.sin(2 * np.pi * (300 + 200 * time) * time) * ((time < 0.8) | (time > 1.2))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((tone * 8000).astype("<i2").tobytes())


def test_pictures(tmp_path, capfd):
    needs("dinov2")
    draw(tmp_path)
    assert run(["checkup", "dinov2", "--images", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    out = capfd.readouterr().out
    assert "dinov2: 72 heads; pictures: 2, 514 positions" in out
    assert "reads along its row" in out
    assert "token before" not in out
    assert "token ids" not in out
    record = mh.load_checkup(tmp_path / "out").record
    assert record.reads == "images"
    assert [d.name for d in record.texts.documents] == ["bars.png", "disc.png"]
    # Spread evenly it would be 15 of 257; DINOv2 has heads that read along rows.
    assert record.texts.value("same_row").max() > 0.4
    assert (tmp_path / "out" / "index.html").exists()


def test_sound(tmp_path, capfd):
    needs("whisper-tiny")
    sound(tmp_path / "tones.wav")
    path, out = str(tmp_path / "tones.wav"), str(tmp_path / "out")
    assert run(["checkup", "whisper-tiny", "--audio", path, "--out", out, "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["reads"] == "audio"
    assert {row["head"].split(".")[0] for row in data["heads"]} == {"encoder", "decoder", "cross"}
    assert [d["name"] for d in data["documents"]] == ["tones.wav"]
    assert data["documents"][0]["tokens"] > 1500
    # Its encoder has a head that looks ahead; the decoder, which cannot, has no number there.
    assert np.nanmax(mh.load_checkup(tmp_path / "out").statistics.value("next")) > 0.6
