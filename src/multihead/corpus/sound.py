"""Recordings to measure on, from files: one channel, at any rate."""

import importlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from multihead.corpus.files import Files, bytes_of, find_files, shown_name
from multihead.corpus.text import digest_of
from multihead.corpus.wav import WavError, decode_wav, is_wav
from multihead.error import MultiheadError

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
"""Endings of the files that are read from folders; a file named by itself is read whatever its ending."""

SHORTEST = 0.1
"""Seconds below which there is nothing to attend to."""

# The filter of the resampling: zero crossings on each side, Kaiser's beta (stopband below -90 dB), and where it ends.
_CROSSINGS, _BETA, _ROLLOFF = 24, 9.5, 0.93
_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """One recording.

    Args:
        name: File name, unique within one reading.
        samples: One channel, full scale at 1 (samples,).
        rate: Samples a second.

    Attributes:
        digest: First 16 hex digits of the SHA-256 of its rate and samples.

    Example:
        >>> Sound("silence", torch.zeros(8000), 16000).seconds
        0.5
    """

    name: str
    samples: Float32[Tensor, " samples"]
    rate: int
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", shown_name(self.name))
        self._check()
        content = self.samples.cpu().contiguous().numpy().tobytes()
        object.__setattr__(self, "digest", digest_of(f"{self.rate}:".encode() + content))

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / self.rate

    def _check(self) -> None:
        if self.samples.dtype is not torch.float32 or self.samples.ndim != 1 or self.rate < 1:
            told = f"{self.samples.dtype} of shape {tuple(self.samples.shape)}, rate={self.rate}"
            raise self._wrong(told, "give one channel as float32, and the samples a second")
        if self.seconds < SHORTEST:
            told = f"{len(self.samples)} samples at {self.rate} Hz, {self.seconds:.3g} s"
            raise self._wrong(told, "record something longer, or leave it out")
        finite = int(torch.isfinite(self.samples).sum())
        if finite < len(self.samples):
            told = f"{len(self.samples) - finite} of {len(self.samples)} samples are NaN or infinite"
            raise self._wrong(told, "write the file again, or leave it out")

    def _wrong(self, arrived: str, remedy: str) -> MultiheadError:
        return MultiheadError(
            asked=f"a recording of at least {SHORTEST} s in {self.name}, every sample a number",
            arrived=arrived,
            remedy=remedy,
        )


def read_sounds(paths: str | Path | Sequence[str | Path]) -> Files[Sound]:
    """Find recordings in files and folders; each is read when it is asked for.

    WAV is read here: 8, 16, 24 and 32 bits and floating point. FLAC, Ogg and MP3 are read by the package soundfile,
    where it is installed. Several channels become their mean. Folders are read through in the order of names; other
    files are listed in `skipped`.

    Args:
        paths: Files and folders. A file met twice is taken once.

    Returns:
        The recordings, with distinct names.

    Raises:
        MultiheadError: A path does not exist, or there is no recording. When one is asked for: its file is damaged, cut
            off, shorter than 0.1 s, holds NaN, or needs soundfile.

    Example:
        >>> [sound.seconds for sound in read_sounds("speech/")]  # doctest: +SKIP
        [10.2, 44.0]
    """
    return find_files(paths, suffixes=SUFFIXES, kind="recordings", read=read_sound)


def read_sound(file: Path, name: str) -> Sound:
    """Read one recording.

    Args:
        file: Where it lies.
        name: What to call it.

    Raises:
        MultiheadError: See `read_sounds`.
    """
    content = bytes_of(file, kind="a recording")
    if not content:
        raise _unread(file, "an empty file", "get it again, or leave it out")
    if not is_wav(content):
        return Sound(name, *_by_soundfile(file, content))
    try:
        samples, rate = decode_wav(content)
    except WavError as fault:
        raise _unread(file, str(fault), "save it as WAV of 16 bits: ffmpeg -i IN -c:a pcm_s16le OUT.wav") from fault
    return Sound(name, torch.from_numpy(samples).mean(dim=1), rate)


def resample(samples: Float32[Tensor, " samples"], *, rate: int, new_rate: int) -> Float32[Tensor, " new_samples"]:
    """Samples at another rate: y(t) = sum_k x[k] h(t - k), h a sinc under a Kaiser window, cut off below both bands.

    For every ratio of whole numbers, without a step of rounding in between: output i stands at i * rate / new_rate.
    What lies above half the new rate is taken out first (by the same filter), so that it does not come back as another
    tone. The recording counts as silent before its beginning and after its end. (Smith, "Digital Audio Resampling".)

    Args:
        samples: The recording.
        rate: Its samples a second.
        new_rate: Those that are wanted.

    Returns:
        ceil(samples * new_rate / rate) samples.

    Example:
        >>> resample(torch.zeros(441), rate=44100, new_rate=16000).shape
        torch.Size([160])
    """
    common = math.gcd(rate, new_rate)
    old, new = rate // common, new_rate // common
    if old == new:
        return samples
    # In units of old samples; the cutoff as a share of the old band.
    cutoff = min(1.0, new / old) * _ROLLOFF
    reach = math.ceil(_CROSSINGS / cutoff)
    taps = torch.arange(-reach, reach + 1)
    # An output stands at a whole place and one of `new` fractions: one filter for each.
    apart = torch.arange(new, dtype=torch.float64)[:, None] / new - taps
    window = torch.special.i0(_BETA * (1 - (apart / (reach + 1)) ** 2).clamp(min=0).sqrt()) / float(np.i0(_BETA))
    filters = (cutoff * torch.sinc(cutoff * apart) * window).float()
    padded = torch.nn.functional.pad(samples, (reach, reach + old))
    total = math.ceil(len(samples) * new / old)
    parts: list[Tensor] = []
    for start in range(0, total, _AT_ONCE):
        places = torch.arange(start, min(start + _AT_ONCE, total))
        around = padded[(places * old // new)[:, None] + taps + reach]
        parts.append((around * filters[places * old % new]).sum(-1))
    return torch.cat(parts)


def _by_soundfile(file: Path, content: bytes) -> tuple[Tensor, int]:
    try:
        soundfile = importlib.import_module("soundfile")
    except ImportError as missing:
        raise _unread(
            file, f"no WAV, and {missing}", "pip install soundfile, or convert it: ffmpeg -i IN -c:a pcm_s16le OUT.wav"
        ) from missing
    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    # A damaged file raises an error of soundfile, or of the library below it.
    except Exception as fault:
        told = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        raise _unread(file, told, "get the file again, or leave it out") from fault
    return torch.from_numpy(samples).mean(dim=1), int(rate)


def _unread(file: Path, arrived: str, remedy: str) -> MultiheadError:
    return MultiheadError(asked=f"a recording in {file}", arrived=arrived, remedy=remedy)
