"""WAV files: plain samples of 8 to 32 bits and floating point, as numbers from -1 to 1."""

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_NAMED = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 85: "MP3"}
_MOST_CHANNELS, _FASTEST = 64, 768_000
# Programs that write to a pipe do not know the length in advance.
_UNKNOWN = (0, 0xFFFFFFFF)


class WavError(ValueError):
    """A file that is no WAV, or a WAV that cannot be read."""


def is_wav(content: bytes) -> bool:
    """Whether some bytes begin as a WAV file does."""
    return content[:4] == b"RIFF" and content[8:12] == b"WAVE"


def decode_wav(content: bytes) -> tuple[NDArray[np.float32], int]:
    """The samples of a WAV file.

    The reader of the standard library knows neither floating point nor, before Python 3.12, the extended header, so the
    chunks are walked here (RIFF, "Multimedia Programming Interface and Data Specifications 1.0", Microsoft 1991).

    Args:
        content: The whole file.

    Returns:
        Samples (samples, channels), full scale at 1, and samples a second.

    Raises:
        WavError: What is wrong, in words.
    """
    if not is_wav(content):
        raise WavError("no RIFF/WAVE header")
    form: bytes | None = None
    for kind, start, length in _chunks(content):
        if kind == b"fmt ":
            form = content[start : start + length]
        if kind == b"data":
            if form is None:
                raise WavError("samples before their format")
            return _samples(content, start, length, form)
    raise WavError("no samples: the data chunk is missing")


def _chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and stated length of each chunk."""
    at = 12
    while at + 8 <= len(content):
        kind, length = struct.unpack_from("<4sI", content, at)
        yield kind, at + 8, length
        at += 8 + length + length % 2


def _samples(content: bytes, start: int, length: int, form: bytes) -> tuple[NDArray[np.float32], int]:
    code, channels, rate, bits = _format(form)
    there = len(content) - start
    if length in _UNKNOWN:
        length = there
    if length > there:
        raise WavError(f"{there} bytes of samples, the header says {length}: it is cut off")
    frame = channels * bits // 8
    used = length // frame * frame
    return _numbers(content[start : start + used], code, bits).reshape(-1, channels), rate


def _format(form: bytes) -> tuple[int, int, int, int]:
    if len(form) < 16:
        raise WavError(f"a format of {len(form)} bytes, at least 16 are due")
    code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if code == _EXTENSIBLE and len(form) >= 26:
        (code,) = struct.unpack_from("<H", form, 24)
    if (code, bits) not in {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)}:
        raise WavError(f"{bits} bits of {_NAMED.get(code, f'the format {code}')}, which is not read here")
    if not 0 < channels <= _MOST_CHANNELS or not 0 < rate <= _FASTEST:
        raise WavError(f"{channels} channels of {rate} samples a second")
    return code, channels, rate, bits


def _numbers(raw: bytes, code: int, bits: int) -> NDArray[np.float32]:
    if code == _FLOAT:
        return np.frombuffer(raw, f"<f{bits // 8}").astype(np.float32)
    if bits == 8:
        # The only one without a sign.
        return ((np.frombuffer(raw, np.uint8).astype(np.float64) - 128) / 128).astype(np.float32)
    if bits == 24:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        raw, bits = wide.tobytes(), 32
    return (np.frombuffer(raw, f"<i{bits // 8}") / 2.0 ** (bits - 1)).astype(np.float32)
