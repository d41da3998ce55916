"""Which modules of a model are attention, told from the model alone."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType

from torch import nn

from multihead.error import MultiheadError
from multihead.hooks.address import name_stacks
from multihead.hooks.call import Site
from multihead.layer import MultiHeadAttention

# The table every attention module of transformers looks its kernel up in.
_TABLE = "ALL_ATTENTION_FUNCTIONS"
# Its own base class names the table too, to list what it holds.
_BASE_CLASSES = "transformers.modeling_utils"
_CROSS_NAME = re.compile(r"cross|encoder_attn|enc_?dec|x_attn|token_to_image|image_to_token", re.IGNORECASE)
_CROSS_CLASS = re.compile(r"cross_?att|enc(oder)?_?dec(oder)?_?att", re.IGNORECASE)
_ALIKE = re.compile(r"attention|attn", re.IGNORECASE)
_HEAD_COUNTS = ("num_heads", "n_heads", "num_attention_heads", "heads", "n_head")
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """An attention layer that can be watched.

    Args:
        site: Where it is. A layer that is called several times a pass (ALBERT) is listed once, with repeat 0.
        heads: Number of its query heads, or None where the module does not state it.
    """

    site: Site
    heads: int | None


def locate(model: nn.Module) -> tuple[Located, ...]:
    """Which attention layers of a model can be watched, without running it.

    Found are modules of transformers whose code takes its kernel from `ALL_ATTENTION_FUNCTIONS`, and
    `multihead.MultiHeadAttention` (one class for self- and cross-attention: which it is shows when it is called).

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.

    Returns:
        The layers, in the order of `model.named_modules()`.

    Raises:
        MultiheadError: There is none; the message names the modules that look like attention.

    Example:
        >>> [located.site.module for located in locate(model)]  # doctest: +SKIP
        ['encoder.layer.0.attention.self', 'encoder.layer.1.attention.self']
    """
    found = find_attention(model)
    if not found:
        raise no_attention(model, "found none")
    stacks = name_stacks((path, is_cross(path, module)) for path, module in found)
    return tuple(
        Located(site=Site(module=path, cross=cross, stack=stacks[path, cross]), heads=_heads(module))
        for path, module in found
        for cross in (is_cross(path, module),)
    )


def find_attention(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Path and module of every attention layer that passes through a seam we know."""
    return [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, MultiHeadAttention) or _uses_table(type(module))
    ]


def is_cross(path: str, module: nn.Module) -> bool:
    """Whether keys come from another sequence, from the module's flag, class or name (shapes do not tell)."""
    if getattr(module, "is_cross_attention", False) is True or _CROSS_CLASS.search(type(module).__name__):
        return True
    # Only the part below the layer's number: a whole stack may be called a cross encoder.
    below = re.split(r"\.\d+\.", path)[-1]
    return _CROSS_NAME.search(below) is not None


def no_attention(model: nn.Module, happened: str) -> MultiheadError:
    """The error for a model whose attention cannot be seen.

    Args:
        model: The model.
        happened: What was tried and came to nothing, e.g. `"found none"`.
    """
    alike = [(path, type(m).__name__) for path, m in model.named_modules() if _ALIKE.search(type(m).__name__)]
    shown = ", ".join(f"{path or 'the model'} ({name})" for path, name in alike[:_SHOWN])
    more = f" and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else ""
    return MultiheadError(
        asked="attention that passes through transformers' AttentionInterface or multihead.MultiHeadAttention",
        arrived=f"{type(model).__name__}: {happened}; modules that look like attention: {shown or 'none'}{more}",
        remedy="pass the model itself (not a wrapper or a compiled copy) of a family whose attention can be exchanged "
        "(BERT, GPT-2, Llama, T5, ViT, Whisper, ...), or build it on multihead.MultiHeadAttention",
    )


@cache
def _uses_table(kind: type[nn.Module]) -> bool:
    """Whether a method of the class names the table; its own code tells, decorators are seen through."""
    bases = (base for base in kind.__mro__ if base is not nn.Module and base.__module__ != _BASE_CLASSES)
    methods = (value for base in bases for value in vars(base).values())
    codes = (getattr(inspect.unwrap(method), "__code__", None) for method in methods if callable(method))
    return any(_TABLE in names for code in codes if isinstance(code, CodeType) for names in _names(code))


def _names(code: CodeType) -> Iterator[tuple[str, ...]]:
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _heads(module: nn.Module) -> int | None:
    config = getattr(module, "config", None)
    stated = (getattr(module, name, None) for name in _HEAD_COUNTS)
    counts = [*stated, getattr(config, "num_attention_heads", None)]
    return next((count for count in counts if type(count) is int and count > 0), None)
