"""Sinusoids that are added to the embeddings of tokens, in the four layouts that trained models have."""

import math
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.error import MultiheadError, check_kinds, kind_and_text
from multihead.position.check import is_number, is_whole_number

SinusoidLayout = Literal["interleaved", "split", "split_log", "cos_first"]
_MOST = 2**40  # far beyond what memory holds, and far below where whole numbers of 64 bits end


def sinusoid(
    positions: int | Int[Tensor, "*shape"],
    dim: int,
    *,
    layout: SinusoidLayout = "interleaved",
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Float[Tensor, "*shape dim"]:
    """Sines and cosines of `position * w_k` for wavelengths that grow geometrically.

    Vaswani et al. 2017, "Attention Is All You Need", section 3.5. With h = dim / 2 and k = 0, ..., h - 1:

    | layout | w_k | columns | who |
    |---|---|---|---|
    | "interleaved" | base ** (-2 k / dim) | sin 0, cos 0, sin 1, cos 1, ... | the paper, XLM, SpeechT5, conformers |
    | "split" | base ** (-2 k / dim) | all sines, then all cosines | Marian, Pegasus, Transformer-XL, XLNet |
    | "split_log" | base ** (-k / (h - 1)) | all sines, then all cosines | Whisper, fairseq, M2M-100, Speech2Text |
    | "cos_first" | base ** (-k / (h - 1)) | all cosines, then all sines | MusicGen |

    An odd `dim` has one sine more than cosines in the first two; in the last two its last column is 0.

    Which position is the first differs too: most count from 0; fairseq's descendants (M2M-100, NLLB, XGLM, Speech2Text)
    count from `padding_idx + 1`, and padding gets zeros, not position `padding_idx`. BART's learned table, which needs
    nothing from here, has two rows before the first position.

    Computed in float64, then rounded.

    Args:
        positions: A number n for 0, ..., n - 1, or the positions themselves, negative ones too.
        dim: Width of the embeddings.
        layout: Which of the four.
        base: Ratio of the longest to the shortest wavelength.
        dtype: Of the result.
        device: Where it is made, for a number of positions; else where they are.

    Returns:
        (n, dim), or (*shape of positions, dim).

    Raises:
        MultiheadError: An unknown layout, fewer dimensions than it needs, or positions that are no integers.

    Example:
        >>> sinusoid(2, 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    _check(positions, dim, layout)
    _check_numbers(base, dtype, device)
    if not isinstance(positions, Tensor):
        positions = torch.arange(positions, device=device)
    logarithmic = layout in ("split_log", "cos_first")
    steps, last = (dim // 2, dim // 2 - 1) if logarithmic else ((dim + 1) // 2, dim / 2)
    rates = torch.exp(torch.arange(steps, dtype=torch.float64, device=positions.device) * (-math.log(base) / last))
    angles = positions[..., None].double() * rates
    sin, cos = angles.sin(), angles.cos()
    if layout == "interleaved":
        return torch.stack([sin, cos], -1).flatten(-2)[..., :dim].to(dtype)
    both = torch.cat([cos, sin] if layout == "cos_first" else [sin, cos], -1)
    if logarithmic:
        return torch.nn.functional.pad(both, (0, dim % 2)).to(dtype)
    return both[..., :dim].to(dtype)


def check_layout(layout: object, known: tuple[str, ...]) -> None:
    """Refuses a layout of sinusoids that is none of the known ones."""
    if not isinstance(layout, str) or layout not in known:
        raise MultiheadError(
            asked=f"a layout of sinusoids: {', '.join(known)}",
            arrived=f"layout={layout!r}"[:200],
            remedy='pass "interleaved" for the paper\'s, "split" for Marian\'s'
            + (', "split_log" for Whisper\'s' if "split_log" in known else ""),
        )


def _check(positions: object, dim: object, layout: str) -> None:
    check_layout(layout, get_args(SinusoidLayout))
    least = 4 if layout in ("split_log", "cos_first") else 1
    if not is_whole_number(dim) or not least <= cast(int, dim) <= _MOST:
        raise MultiheadError(
            asked=f"sinusoids of at least {least} dimensions in the layout {layout!r}",
            arrived=f"dim={dim!r}"[:200],
            remedy=f"pass dim >= {least}",
        )
    if isinstance(positions, Tensor):
        whole = not (positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool)
        told = f"{positions.dtype}, shape {tuple(positions.shape)}"
    else:
        whole = is_whole_number(positions) and 0 <= cast(int, positions) <= _MOST
        told = str(positions) if is_whole_number(positions) else kind_and_text(positions)
    if not whole:
        raise MultiheadError(
            asked="a number of positions, or positions as an integer tensor",
            arrived=told,
            remedy="pass how many there are, from 0 on, or torch.arange(first, first + length)",
        )


def _check_numbers(base: object, dtype: object, device: object) -> None:
    if not is_number(base) or not 0 < base < math.inf:
        raise MultiheadError(
            asked="a base of sinusoids: a finite number above 0",
            arrived=f"base={base!r}"[:200],
            remedy="leave it at 10000.0",
        )
    check_kinds({"dtype": dtype}, (torch.dtype,), "a floating dtype, such as torch.float32")
    if not cast(torch.dtype, dtype).is_floating_point:
        raise MultiheadError(
            asked="sinusoids of a floating dtype", arrived=f"dtype={dtype}", remedy="pass dtype=torch.float32"
        )
    check_kinds({"device": device}, (torch.device, str, int, type(None)), "a device, such as torch.device('cpu')")
