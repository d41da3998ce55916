"""Log-mel frames of a recording, as Whisper reads them."""

from functools import cache
from typing import Any

from jaxtyping import Float, Float32
from torch import Tensor

from multihead.error import MultiheadError
from multihead.interop.facts import SoundFacts


def log_mel(
    samples: Float32[Tensor, " samples"], *, facts: SoundFacts, length: int | None = None
) -> Float[Tensor, "bins frames"]:
    """Log-mel frames, made by the feature extractor of transformers.

    x = log10 of the mel bands of the squared spectrum, floored 8 below its largest; then (x + 4) / 4 (Radford et al.
    2022, arXiv 2212.04356). The recording is cut, or continued with silence, to the length.

    Args:
        samples: One channel at `facts.rate`.
        facts: Window, hop and bins.
        length: Samples to cut or fill to; None is `facts.longest`.

    Returns:
        One column for each hop.

    Raises:
        MultiheadError: transformers is not installed.
    """
    extractor = _extractor(facts.rate, facts.bins, facts.hop, facts.window)
    made = extractor(
        samples.cpu().numpy(), sampling_rate=facts.rate, max_length=length or facts.longest, return_tensors="pt"
    )
    features: Tensor = made["input_features"]
    return features[0]


@cache
def _extractor(rate: int, bins: int, hop: int, window: int) -> Any:
    try:
        from transformers import WhisperFeatureExtractor
    except ImportError as missing:
        raise MultiheadError(
            asked="log-mel frames of a recording", arrived=str(missing), remedy="pip install 'multihead[hf]'"
        ) from missing
    return WhisperFeatureExtractor(feature_size=bins, sampling_rate=rate, hop_length=hop, n_fft=window)
