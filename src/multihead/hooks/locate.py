"""Which modules of a model are attention, told from the model alone."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from multihead.error import MultiheadError, kind_and_text
from multihead.hooks.address import addresses, name_stacks
from multihead.hooks.call import Site
from multihead.hooks.code import computes_attention, stated_heads, uses_table
from multihead.hooks.families import families
from multihead.hooks.remark import stateful
from multihead.layer import Attends

_CROSS_NAME = re.compile(r"cross|encoder_attn|enc_?dec|x_attn|token_to_image|image_to_token", re.IGNORECASE)
_CROSS_CLASS = re.compile(r"cross_?att|enc(oder)?_?dec(oder)?_?att", re.IGNORECASE)
_ALIKE = re.compile(r"attention|attn", re.IGNORECASE)
_SHOWN = 5

How = Literal["seen", "fallback"]
"""Seen: through a seam that hands over everything. Fallback: by looking at the functions of torch a module calls."""

Found = Sequence[tuple[str, nn.Module]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """An attention layer that can be watched.

    Args:
        site: Where it is. A layer that is called several times a pass (ALBERT) is listed once, with repeat 0.
        heads: Number of its query heads, or None where the module does not state it.
        how: How it is seen.
    """

    site: Site
    heads: int | None
    how: How = "seen"


class Layers(tuple[Located, ...]):
    """Attention layers of a model; printed, a table."""

    __slots__ = ()

    def __str__(self) -> str:
        places = addresses([located.site for located in self])
        rows = [("layer", "heads", "how", "module")]
        for located in self:
            stack, layer = places[located.site]
            heads = "?" if located.heads is None else str(located.heads)
            rows.append((f"{stack}.L{layer}".lstrip("."), heads, located.how, located.site.module or "(the model)"))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def check_model(model: object) -> nn.Module:
    """The model, if it is one.

    Raises:
        MultiheadError: It is something else.
    """
    if not isinstance(model, nn.Module):
        raise MultiheadError(
            asked="a model, a torch.nn.Module",
            arrived=kind_and_text(model),
            remedy='pass the model itself; mh.open_model("minilm").model gives one',
        )
    return model


def locate(model: nn.Module) -> Layers:
    """Which attention layers of a model can be watched, without running it.

    Seen are modules of transformers whose code takes its kernel from `ALL_ATTENTION_FUNCTIONS`, and
    `multihead.MultiHeadAttention` (one class for self- and cross-attention: which it is shows when it is called). Seen
    by fallback are `nn.MultiheadAttention`, also within `nn.TransformerEncoder`, and modules whose code computes
    attention by itself: it names `scaled_dot_product_attention`, or softmax and a product of matrices. Whether such
    code can be followed shows when it runs, see `Watched.unseen`.

    Args:
        model: A transformers model, or any module with attention in it.

    Returns:
        The layers, in the order of `model.named_modules()`; `print(locate(model))` shows them as a table.

    Raises:
        MultiheadError: There is none, or it is no model; the message names the modules that look like attention.

    Example:
        >>> [located.site.module for located in locate(model)]  # doctest: +SKIP
        ['encoder.layer.0.attention.self', 'encoder.layer.1.attention.self']
        >>> print(locate(model))  # doctest: +SKIP
        layer  heads  how   module
        L0     12     seen  encoder.layer.0.attention.self
        L1     12     seen  encoder.layer.1.attention.self
    """
    check_model(model)
    seen, fallback = find_attention(model), innermost(find_fallback(model), find_attention(model))
    if not seen and not fallback:
        unseen = (f"{path or 'the model'}: {reason}" for path, reason in stateful(model))
        raise no_attention(model, "found none", unseen)
    crossing = crosses(model)
    known = {id(module) for _, module in seen}
    order = {path: place for place, (path, _) in enumerate(model.named_modules())}
    found = sorted((*seen, *fallback), key=lambda pair: order[pair[0]])
    stacks = name_stacks((path, crossing[id(module)]) for path, module in found)
    return Layers(
        Located(
            site=Site(module=path, cross=crossing[id(module)], stack=stacks[path, crossing[id(module)]]),
            heads=_heads_of(module),
            how="seen" if id(module) in known else "fallback",
        )
        for path, module in found
    )


def _heads_of(module: nn.Module) -> int | None:
    """Heads as a call has them: where weights are differences of two, each is one."""
    groups = getattr(module, "groups", ()) if isinstance(module, Attends) else ()
    return sum(group.heads for group in groups) or stated_heads(module)


def find_attention(model: nn.Module) -> Found:
    """Path and module of every attention layer that passes through a seam we know."""
    return [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, Attends) or uses_table(type(module))
    ]


def find_fallback(model: nn.Module) -> Found:
    """Path and module of everything that may compute attention by itself."""
    known = {id(module) for _, module in find_attention(model)}
    return [
        (path, module)
        for path, module in model.named_modules()
        if id(module) not in known and (isinstance(module, nn.MultiheadAttention) or computes_attention(module))
    ]


def innermost(fallback: Found, seen: Found) -> Found:
    """Those that hold no other attention: a head above layers may have a softmax and a product of its own."""
    paths = [path for path, _ in (*fallback, *seen)]
    return [(path, m) for path, m in fallback if not any(_is_within(other, path) for other in paths)]


def _is_within(path: str, outer: str) -> bool:
    return path != outer and (outer == "" or path.startswith(f"{outer}."))


def crosses(model: nn.Module) -> dict[int, bool]:
    """For each module, by identity, whether as attention it takes keys from another sequence."""
    modules = dict(model.named_modules())
    return {
        id(module): is_cross(path, module)
        or (
            path.endswith("multihead_attn") and isinstance(modules[path.rpartition(".")[0]], nn.TransformerDecoderLayer)
        )
        for path, module in modules.items()
    }


def is_cross(path: str, module: nn.Module) -> bool:
    """Whether keys come from another sequence, from the module's flag, class or name (shapes do not tell)."""
    if getattr(module, "is_cross_attention", False) is True or _CROSS_CLASS.search(type(module).__name__):
        return True
    # Only the part below the layer's number: a whole stack may be called a cross encoder.
    below = re.split(r"\.\d+\.", path)[-1]
    return _CROSS_NAME.search(below) is not None


def no_attention(model: nn.Module, happened: str, unseen: Iterable[str] = ()) -> MultiheadError:
    """The error for a model whose attention cannot be seen.

    Args:
        model: The model.
        happened: What was tried and came to nothing, e.g. `"found none"`.
        unseen: What is known of single modules.
    """
    alike = [(path, type(m).__name__) for path, m in model.named_modules() if _ALIKE.search(type(m).__name__)]
    shown = ", ".join(f"{path or 'the model'} ({name})" for path, name in alike[:_SHOWN])
    more = f" and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else ""
    reasons = "; ".join(list(unseen)[:_SHOWN])
    return MultiheadError(
        asked="attention that can be seen: through transformers' AttentionInterface, multihead.MultiHeadAttention, "
        "nn.MultiheadAttention, or code that calls scaled_dot_product_attention or multiplies softmax by values",
        arrived=f"{type(model).__name__}: {happened}; "
        + (f"{reasons}; " if reasons else "")
        + f"modules that look like attention: {shown or 'none'}{more}",
        remedy="pass the model itself (not a wrapper or a compiled copy); multihead.hooks.families() lists "
        f"{len(families())} families with how each is seen; or build it on multihead.MultiHeadAttention",
    )
