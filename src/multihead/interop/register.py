"""Our attention as an implementation that any transformers model can be told to use."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from multihead.attend import Softmax, attention
from multihead.error import MultiheadError
from multihead.pattern import Pattern, causal

NAME = "multihead"
# Not written for sdpa because that has no softcap and no sinks, as ours has; their masks are what sdpa takes.
_AS_SDPA = frozenset({"gemma2", "gpt_oss"})


def register_transformers() -> str:
    """Register `multihead.attention` with transformers, under the name `"multihead"`.

    Models then run on it: scale, grouped heads, causal rule, masks, softcap, sinks and T5's position bias included. It
    is registered in `AttentionInterface` and, since transformers hands no mask at all to an implementation without one,
    in `AttentionMaskInterface` too. Calling it again changes nothing.

    Returns:
        The name.

    Raises:
        MultiheadError: transformers is not installed.

    Example:
        >>> model.set_attn_implementation(register_transformers())  # doctest: +SKIP
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as missing:
        raise MultiheadError(
            asked="to register our attention with transformers",
            arrived=str(missing),
            remedy="pip install 'multihead[hf]'",
        ) from missing
    AttentionInterface.register(NAME, multihead_attention_forward)
    AttentionMaskInterface.register(NAME, multihead_mask)
    return NAME


def multihead_mask(*args: Any, config: Any = None, **others: Any) -> Tensor | None:
    """The mask of a transformers model whose attention is ours.

    For a family that runs on sdpa it is the one of sdpa: True = attend, or None where the module itself tells whether
    it is causal. The modules of the others were written for eager masks: some say they are not causal and are, some
    put more numbers behind the mask. They get what they were written for, scores to add.

    Args:
        *args: What `transformers.masking_utils.sdpa_mask` takes.
        config: The configuration of the model.
        **others: What it takes by name.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    return (sdpa_mask if _runs_on_sdpa(type(config)) else eager_mask)(*args, config=config, **others)


@cache
def _runs_on_sdpa(kind: type) -> bool:
    """Whether the family of this kind of configuration says so; one that is not known does not."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    if getattr(kind, "model_type", "") in _AS_SDPA:
        return True
    try:
        found: Any = MODEL_MAPPING[kind]
    except KeyError:
        return False
    models = found if isinstance(found, tuple) else (found,)
    return all(getattr(model, "_supports_sdpa", False) for model in models)


def multihead_attention_forward(  # noqa: PLR0913 - the signature transformers calls
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,  # noqa: FBT001
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """One attention call of a transformers model.

    Args:
        module: The attention module; its `is_causal` counts where the call says nothing.
        query: (batch, heads, q_len, head_dim).
        key: (batch, kv_heads, kv_len, head_dim).
        value: (batch, kv_heads, kv_len, v_head_dim).
        attention_mask: True = attend, or scores to add, (batch, heads | 1, q_len, kv_len); None is causal if the module
            is and there is more than one query, else everything.
        dropout: Share of the weights to drop.
        scaling: Factor of the products.
        is_causal: Overrules the module.
        softcap: c in c * tanh(scaled / c).
        s_aux: Sinks (heads,).
        position_bias: Added to the scores.
        **others: Named by some models; windows among them, which are in the mask.

    Returns:
        Head outputs (batch, q_len, heads, v_head_dim), and None for weights.

    Raises:
        MultiheadError: The model computes a sink for every query; or a tensor has a shape attention does not take.
    """
    if others.get("sinks") is not None:
        raise MultiheadError(
            asked="sinks of one number a head",
            arrived=f"{type(module).__name__} computes a sink for every query",
            remedy="run this model under its eager implementation",
        )
    if query.shape[0] != key.shape[0]:
        batch = max(query.shape[0], key.shape[0])
        query, key, value = (t.expand(batch, -1, -1, -1) for t in (query, key, value))
    mask, bias = _taken_apart(attention_mask)
    q_len = query.shape[2]
    if mask is None and bias is None and q_len > 1 and _is_causal(is_causal, module):
        # A static cache is longer than what was written to it.
        key, value, mask = key[:, :, :q_len], value[:, :, :q_len], causal()
        position_bias = None if position_bias is None else position_bias[..., :q_len]
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    output = attention(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scaling,
        softcap=softcap,
        normaliser=Softmax(sinks=s_aux),
        dropout=dropout,
    )
    return output.transpose(1, 2).contiguous(), None


def _is_causal(asked: bool | None, module: nn.Module) -> bool:  # noqa: FBT001
    return bool(asked if asked is not None else getattr(module, "is_causal", True))


def _taken_apart(mask: Tensor | None) -> tuple[Pattern | Tensor | None, Tensor | None]:
    """A mask as True = attend and what it adds besides; the lowest number of a dtype stands for shut."""
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    shut = mask <= torch.finfo(mask.dtype).min / 2
    return ~shut, mask.masked_fill(shut, 0.0)
