import importlib
import struct
import sys
import types
import wave

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multihead.corpus import Sound, read_sounds, resample
from multihead.corpus.wav import WavError, decode_wav
from multihead.error import MultiheadError

RATE = 8000


def tone(seconds=0.5, *, channels=1):
    t = np.arange(int(seconds * RATE)) / RATE
    return np.stack([0.8 * np.sin(2 * np.pi * (440 + 110 * c) * t) for c in range(channels)], axis=1)


def chunk(kind, content):
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def wav(raw, *, code=1, bits=16, channels=1, rate=RATE, extensible=False, stated=None, before=b""):
    """A WAV file, put together from its description."""
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else code, channels, rate, 0, 0, bits)
    if extensible:
        guid = struct.pack("<H", code) + bytes.fromhex("000000001000800000aa00389b71")
        form += struct.pack("<HHI", 22, bits, 0) + guid
    data = b"data" + struct.pack("<I", len(raw) if stated is None else stated) + raw
    body = before + chunk(b"fmt ", form) + data
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def stored(samples, code, bits):
    """Samples in one of the forms, and how much they may differ from it."""
    if code == 3:
        return samples.astype(f"<f{bits // 8}").tobytes(), 1e-7
    if bits == 8:
        return np.rint(samples * 127 + 128).astype(np.uint8).tobytes(), 2 / 127
    whole = np.rint(samples * (2 ** (bits - 1) - 1)).astype(np.int64)
    raw = whole.astype("<i8").reshape(-1, 1).view(np.uint8)[:, : bits // 8]
    return raw.tobytes(), 2 / 2 ** (bits - 1) + 1e-7


@pytest.mark.parametrize(("code", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("extensible", [False, True])
def test_every_form_of_samples(code, bits, channels, extensible):
    samples = tone(0.01, channels=channels)
    raw, error = stored(samples, code, bits)
    odd = chunk(b"LIST", b"odd")
    given_ = wav(raw, code=code, bits=bits, channels=channels, extensible=extensible, before=odd)
    read, rate = decode_wav(given_)
    assert rate == RATE
    assert read.dtype == np.float32
    assert np.abs(read - samples).max() <= error


def test_a_file_of_the_standard_library(tmp_path):
    samples = tone(channels=2)
    with wave.open(str(tmp_path / "s.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(stored(samples, 1, 16)[0])
    (sound,) = read_sounds(tmp_path)
    assert (sound.name, sound.rate, sound.seconds) == ("s.wav", RATE, 0.5)
    assert np.abs(sound.samples.numpy() - samples.mean(1)).max() < 1e-4


@pytest.mark.parametrize("stated", [0, 0xFFFFFFFF])
def test_a_length_nobody_knew_is_that_of_the_file(stated):
    raw, _ = stored(tone(0.01), 1, 16)
    assert len(decode_wav(wav(raw + b"x", stated=stated))[0]) == 80


def test_every_complaint_says_what_is_wrong():
    raw, _ = stored(tone(0.01), 1, 16)
    for content, match in (
        (b"RIFF", "no RIFF/WAVE header"),
        (wav(raw)[:-9], "151 bytes of samples, the header says 160: it is cut off"),
        (wav(raw, code=6, bits=8), "8 bits of A-law"),
        (wav(raw, code=85, bits=0), "0 bits of MP3"),
        (wav(raw, code=99), "16 bits of the format 99"),
        (wav(raw, bits=12), "12 bits of"),
        (wav(raw, channels=0), "0 channels"),
        (wav(raw, rate=0), "0 samples a second"),
        (wav(raw)[:12] + chunk(b"data", raw), "samples before their format"),
        (wav(raw)[:12] + chunk(b"fmt ", b"1234"), "no samples"),
        (wav(raw)[:12] + chunk(b"fmt ", b"1234") + chunk(b"data", raw), "a format of 4 bytes"),
    ):
        with pytest.raises(WavError, match=match):
            decode_wav(content)


@given(st.data())
def test_damage_is_told_and_never_crashes(data):
    whole = bytearray(wav(stored(tone(0.01), 1, 16)[0], extensible=True, before=chunk(b"LIST", b"odd")))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        samples, _ = decode_wav(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except WavError:
        return  # any other exception fails the test
    assert samples.ndim == 2


def refused(folder, content, match, name="s.wav"):
    (folder / name).write_bytes(content)
    with pytest.raises(MultiheadError, match=match) as caught:
        read_sounds(folder / name)[0]
    return caught.value


def test_files_without_a_sound_are_told_by_name(tmp_path):
    refused(tmp_path, b"", r"s\.wav\n  got: an empty file")
    refused(tmp_path, wav(b""), r"in s\.wav, .*\n  got: 0 samples at 8000 Hz")
    refused(tmp_path, wav(b"12"), "1 samples at 8000 Hz")
    broken = tone(0.2)
    broken[3:5] = np.nan
    refused(tmp_path, wav(stored(broken, 3, 32)[0], code=3, bits=32), "2 of 1600 samples are NaN or infinite")
    assert "ffmpeg" in refused(tmp_path, wav(b"1234", code=17, bits=4), "4 bits of IMA ADPCM").remedy


def test_other_forms_need_soundfile(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert "pip install soundfile" in refused(tmp_path, b"fLaC....", "no WAV, and", "s.flac").remedy

    def read(file, *, dtype, always_2d):
        assert (dtype, always_2d) == ("float32", True)
        if file.read() == b"broken":
            raise RuntimeError("Format not recognised.")
        return tone(0.2, channels=2).astype(np.float32), RATE

    known = importlib.import_module
    fake = types.SimpleNamespace(read=read)
    monkeypatch.setattr(importlib, "import_module", lambda name: fake if name == "soundfile" else known(name))
    (tmp_path / "s.ogg").write_bytes(b"OggS")
    sound = read_sounds(tmp_path / "s.ogg")[0]
    assert np.allclose(sound.samples.numpy(), tone(0.2, channels=2).mean(1), atol=1e-6)
    refused(tmp_path, b"broken", "Format not recognised", "s.mp3")


def test_a_sound_knows_its_content():
    samples = torch.randn(RATE)
    assert Sound("a\x1b", samples, RATE).digest == Sound("b", samples.clone(), RATE).digest
    assert Sound("a", samples, RATE).digest != Sound("a", samples, RATE + 1).digest
    assert Sound("a\x1b", samples, RATE).name == r"a\x1b"
    for wrong in (samples.double(), samples[None]):
        with pytest.raises((MultiheadError, TypeError)):
            Sound("a", wrong, RATE)
    with pytest.raises(MultiheadError, match="rate=0"):
        Sound("a", samples, 0)


@pytest.mark.parametrize(("rate", "new_rate"), [(48000, 16000), (44100, 16000), (8000, 16000), (22050, 16000), (7, 5)])
def test_tones_below_both_bands_keep_their_pitch_and_loudness(rate, new_rate):
    seconds = 2000 / min(rate, new_rate)
    old, new = (np.arange(round(seconds * r)) / r for r in (rate, new_rate))
    for share in (0.0, 0.05, 0.4, 0.8):
        hertz = share * min(rate, new_rate) / 2
        made = resample(torch.from_numpy(np.cos(2 * np.pi * hertz * old + 1)).float(), rate=rate, new_rate=new_rate)
        expected = np.cos(2 * np.pi * hertz * new + 1)
        edge = len(new) // 20
        assert len(made) == len(new)
        assert np.abs(made.numpy()[edge:-edge] - expected[edge:-edge]).max() < 2e-4


@pytest.mark.parametrize(("rate", "new_rate"), [(48000, 16000), (44100, 16000), (20000, 16000)])
def test_tones_above_the_new_band_do_not_come_back(rate, new_rate):
    t = np.arange(rate // 4) / rate
    for share in (1.1, 1.2):
        made = resample(
            torch.from_numpy(np.sin(2 * np.pi * share * new_rate / 2 * t)).float(), rate=rate, new_rate=new_rate
        )
        edge = len(made) // 20
        assert float(made[edge:-edge].abs().max()) < 1e-3


def test_the_same_rate_changes_nothing_and_odd_ones_take_no_time():
    samples = torch.randn(1000)
    assert resample(samples, rate=16000, new_rate=16000) is samples
    assert resample(samples, rate=48000, new_rate=48000) is samples
    assert len(resample(samples, rate=44099, new_rate=16000)) == 363
    assert len(resample(samples, rate=1, new_rate=3)) == 3000
