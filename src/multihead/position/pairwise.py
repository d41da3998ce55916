"""Scalings of rotary frequencies that treat each pair of dimensions by itself: YaRN, Llama 3's, LongRoPE."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from multihead.error import MultiheadError
from multihead.position.check import check_factor, check_length, check_order
from multihead.position.scaling import Length, Scaling, exponents, plain_frequencies


@dataclass(frozen=True, slots=True)
class YaRN(Scaling):
    """Interpolates slow pairs, leaves fast ones, and sharpens the scores (Peng et al. 2023, arXiv:2309.00071).

    A pair that turns `beta_fast` times or more within `trained_length` keeps its frequency, one that turns `beta_slow`
    times or less has it divided by `factor`, and those between are mixed along a line over the pairs.

    cos and sin are multiplied by `attention_factor`, so **scores by its square**. With m(s) = 0.1 s ln(factor) + 1 it
    is m(1) where nothing is given, m(mscale) / m(mscale_all_dim) where both are. Besides, models with latent attention
    (DeepSeek-V2, V3 and those built like them) multiply the scale of the softmax by m(mscale_all_dim) ** 2, which is
    `score_factor`; other models that read the same key do not. So nothing applies it by itself: it goes into the
    `scale` of the scores where such a model is built.

    Args:
        factor: How many times longer.
        trained_length: Positions the model was trained on.
        beta_fast: Turns from which on nothing changes.
        beta_slow: Turns up to which all is interpolated.
        attention_factor: What cos and sin are multiplied by; None for the rule above.
        mscale: Weight of ln(factor) above the line.
        mscale_all_dim: Weight of ln(factor) below the line.
        truncate: Whether the line begins and ends at whole pairs, as in the paper's code; GPT-OSS does not.

    Raises:
        MultiheadError: A factor or length below 1, `beta_slow` not below `beta_fast`, an attention factor not above 0.

    Example:
        >>> YaRN(4.0, 2048).amplitude
        1.138629436111989
    """

    factor: float
    trained_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_factor("YaRN", self.factor)
        check_length("YaRN", self.trained_length)
        check_order("YaRN", ("beta_slow", "beta_fast"), self.beta_slow, self.beta_fast)
        _check_amplitude("YaRN", self.attention_factor)

    @property
    def amplitude(self) -> float:
        """`attention_factor`, or what follows from `factor` and the two mscales."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._sharpness(self.mscale) / self._sharpness(self.mscale_all_dim)
        return self._sharpness(1.0)

    @property
    def score_factor(self) -> float:
        """`m(mscale_all_dim) ** 2`, or 1 where there is none."""
        return self._sharpness(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _sharpness(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1.0

    def frequencies(
        self,
        base: float,
        dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, " pairs"]:
        """The plain frequencies where pairs turn fast, those of `Linear` where they turn slowly."""
        wavelengths = base ** exponents(dim, dtype, device)
        low, high = self._range(base, dim)
        ramp = ((torch.arange(dim // 2, device=device).to(dtype) - low) / (high - low)).clamp(0, 1)
        kept = 1 - ramp
        return 1.0 / (self.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept

    def _range(self, base: float, dim: int) -> tuple[float, float]:
        """The pairs between which frequencies are mixed."""
        low, high = (
            dim * math.log(self.trained_length / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(float(low), 0.0), min(float(high), dim - 1.0)
        # A line of no length is a step: without the small number it would divide by 0.
        return (low, high + 0.001) if low == high else (low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3(Scaling):
    """Llama 3.1's: pairs of short waves stay, those of long ones are divided by `factor`, between is a smooth way.

    With w the wavelength 2 pi / frequency: w < trained_length / high stays; w > trained_length / low is divided;
    between them s = (trained_length / w - low) / (high - low) weighs the plain frequency against the divided one.
    (Grattafiori et al. 2024, arXiv:2407.21783; the rule is in the published code.)

    Args:
        factor: How many times longer.
        trained_length: Positions the model was trained on before.
        low: `low_freq_factor` of the published configurations.
        high: `high_freq_factor`.

    Raises:
        MultiheadError: A factor or length below 1, or `low` not below `high`.

    Example:
        >>> Llama3().frequencies(500000.0, 128).shape
        torch.Size([64])
    """

    factor: float = 8.0
    trained_length: int = 8192
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        check_factor("Llama3", self.factor)
        check_length("Llama3", self.trained_length)
        check_order("Llama3", ("low", "high"), self.low, self.high)

    def frequencies(
        self,
        base: float,
        dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, " pairs"]:
        """The plain frequencies, divided where waves are long."""
        plain = plain_frequencies(base, dim, dtype=dtype, device=device)
        waves = 2 * math.pi / plain
        share = (self.trained_length / waves - self.low) / (self.high - self.low)
        between = (1 - share) * plain / self.factor + share * plain
        near = torch.where(waves > self.trained_length / self.low, plain / self.factor, between)
        return torch.where(waves < self.trained_length / self.high, plain, near)


@dataclass(frozen=True, slots=True)
class LongRoPE(Scaling):
    """Every pair has its own divisor, one set for texts up to `trained_length`, another for longer ones.

    The frequency of pair k is `1 / (divisor_k * base ** (2 k / dim))`; cos and sin are multiplied by
    `attention_factor`, by default sqrt(1 + ln(factor) / ln(trained_length)) (Ding et al. 2024, arXiv:2402.13753; used
    by Phi-3 and Phi-4).

    **Cached keys go stale** once, when the text grows beyond `trained_length`: see `DynamicNTK` for what a cache does.

    Args:
        short: Divisors of the pairs up to `trained_length` positions.
        long: Divisors beyond.
        trained_length: Positions the model was trained on before.
        factor: How many times longer.
        attention_factor: What cos and sin are multiplied by; None for the rule above.

    Raises:
        MultiheadError: Divisors of different number or not above 0, a factor below 1, a length below
            2, an attention factor not above 0; in use, divisors for another number of pairs.

    Example:
        >>> LongRoPE((1.0, 1.0), (1.0, 4.0), 4096, factor=32.0).frequencies(100.0, 4, length=5000)
        tensor([1.0000, 0.0250])
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    trained_length: int
    factor: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        check_factor("LongRoPE", self.factor)
        check_length("LongRoPE", self.trained_length, least=2)  # its logarithm divides
        _check_amplitude("LongRoPE", self.attention_factor)
        least = min((*self.short, *self.long), default=0.0)
        if len(self.short) != len(self.long) or not least > 0:
            raise MultiheadError(
                asked="LongRoPE with a divisor above 0 for each pair, as many short as long ones",
                arrived=f"{len(self.short)} short, {len(self.long)} long, the least of them {least:g}",
                remedy="pass the model's short_factor and long_factor, dim / 2 numbers each",
            )

    @property
    def amplitude(self) -> float:
        """`attention_factor`, or what follows from `factor` and `trained_length`."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.trained_length))

    @property
    def depends_on_length(self) -> bool:
        """Where the two sets differ."""
        return self.short != self.long

    def frequencies(
        self,
        base: float,
        dim: int,
        *,
        length: Length = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Float[Tensor, "... pairs"]:
        """The plain frequencies divided by the set for this length."""
        if len(self.short) != dim // 2:
            raise MultiheadError(
                asked=f"LongRoPE with a divisor for each of the {dim // 2} pairs of dim={dim}",
                arrived=f"{len(self.short)} divisors",
                remedy=f"pass {dim // 2} divisors, or rotate dim={2 * len(self.short)}",
            )
        short, long = (torch.tensor(divisors, dtype=dtype, device=device) for divisors in (self.short, self.long))
        if isinstance(length, Tensor):
            divisors = torch.where(length.to(short.device)[..., None] > self.trained_length, long, short)
        else:
            divisors = long if length is not None and length > self.trained_length else short
        return 1.0 / (divisors * base ** exponents(dim, dtype, device))


def _check_amplitude(kind: str, attention_factor: float | None) -> None:
    if attention_factor is not None and not (math.isfinite(attention_factor) and attention_factor > 0):
        raise MultiheadError(
            asked=f"{kind} with an attention_factor above 0, which cos and sin are multiplied by",
            arrived=f"attention_factor={attention_factor}",
            remedy="pass None for the paper's rule, or 1.0 to leave cos and sin as they are",
        )
