"""`torch.nn.functional.multi_head_attention_forward`, on our kernels."""

from typing import cast

from jaxtyping import Float
from torch import Tensor

from multihead.attend import attention
from multihead.error import MultiheadError
from multihead.interop.compat.check import check_flags, check_like, check_tensors, is_size
from multihead.interop.compat.layer import Inputs, Projections, Wanted, run_layer
from multihead.interop.compat.masks import TorchMasks


def multi_head_attention_forward(  # noqa: PLR0913 - the signature of torch
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,  # noqa: FBT001
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,  # noqa: FBT001, FBT002
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,  # noqa: FBT001, FBT002
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002
    is_causal: bool = False,  # noqa: FBT001, FBT002
) -> tuple[Tensor, Tensor | None]:
    """One multi-head layer with its weights given, with the signature of torch's function.

    Inputs are length first, (length, batch, width) or (length, width), as in torch; masks are torch's, True = masked
    out. What differs is what differs in `MultiheadAttention`.

    Args:
        query: (q_len, batch, width), or (q_len, width).
        key: (kv_len, batch, width of keys).
        value: (kv_len, batch, width of values).
        embed_dim_to_check: The width of the queries.
        num_heads: Number of heads, a divisor of it.
        in_proj_weight: (3 * width, width), or None with separate weights.
        in_proj_bias: (3 * width,), or None.
        bias_k: (1, 1, width), a key behind those of the input, or None.
        bias_v: Its value.
        add_zero_attn: Whether a key and a value of zeros stand behind all others.
        dropout_p: Share of the weights to drop in training.
        out_proj_weight: (width, width).
        out_proj_bias: (width,), or None.
        training: Whether to drop.
        key_padding_mask: (batch, kv_len) or (kv_len,), True = padding, or scores to add.
        need_weights: Whether to compute the weights as well.
        attn_mask: (q_len, kv_len) or (batch * heads, q_len, kv_len), True = masked out, or scores to add.
        use_separate_proj_weight: Whether the three weights that follow count.
        q_proj_weight: (width, width).
        k_proj_weight: (width, width of keys).
        v_proj_weight: (width, width of values).
        static_k: (batch * heads, kv_len, head_dim) in place of projected keys.
        static_v: The same for values.
        average_attn_weights: Whether the weights are their mean over the heads.
        is_causal: Whether query i sees keys 0..i only, besides what the masks say.

    Returns:
        (q_len, batch, width), and the weights (batch, q_len, kv_len) or (batch, heads, q_len, kv_len), or None; without
        the batch where the inputs had none.

    Raises:
        MultiheadError: Inputs or masks that do not belong together.

    Example:
        >>> x, packed = torch.randn(5, 2, 8), torch.randn(24, 8)
        >>> out, weights = multi_head_attention_forward(
        ...     x, x, x, 8, 2, packed, None, None, None, False, 0.0, torch.eye(8), None
        ... )
        >>> out.shape, weights.shape
        (torch.Size([5, 2, 8]), torch.Size([2, 5, 5]))
    """
    check_flags(
        add_zero_attn=add_zero_attn,
        training=training,
        need_weights=need_weights,
        use_separate_proj_weight=use_separate_proj_weight,
        average_attn_weights=average_attn_weights,
        is_causal=is_causal,
    )
    apart = (q_proj_weight, k_proj_weight, v_proj_weight)
    layer = Projections(
        heads=num_heads,
        packed=None if use_separate_proj_weight else in_proj_weight,
        apart=cast(Inputs, apart) if use_separate_proj_weight else None,
        bias=in_proj_bias,
        out_weight=out_proj_weight,
        out_bias=out_proj_bias,
        bias_k=bias_k,
        bias_v=bias_v,
        add_zero=add_zero_attn,
        static=(static_k, static_v),
    )
    check_tensors({"query": query, "key": key, "value": value}, "(length, batch, width) or (length, width)")
    sizes = is_size(num_heads, least=1) and is_size(embed_dim_to_check, least=1) and query.ndim > 0
    if not sizes or query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads:
        raise MultiheadError(
            asked="queries as wide as embed_dim_to_check, and num_heads that divide it",
            arrived=f"query {tuple(query.shape)}, embed_dim_to_check={embed_dim_to_check}, num_heads={num_heads}"[:200],
            remedy="pass the width of the queries, and a divisor of it",
        )
    _check_weights(layer, embed_dim_to_check)
    return run_layer(
        (query, key, value),
        layer,
        TorchMasks(key_padding_mask=key_padding_mask, attn_mask=attn_mask, is_causal=is_causal),
        Wanted(
            attend=lambda qkv, options: attention(*qkv, **options, dropout=dropout_p if training else 0.0),
            weights=need_weights,
            average=average_attn_weights,
        ),
    )


def _check_weights(layer: Projections, width: int) -> None:
    """Refuses weights and biases that are not those of one layer of this width."""
    apart = zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), layer.apart or (), strict=False)
    needed: dict[str, Tensor | None] = {"in_proj_weight": layer.packed}
    if layer.apart is not None:
        needed = dict(apart)
    needed["out_proj_weight"] = layer.out_weight
    check_tensors(needed, "(rows, width)", ndim=2)
    learned = {"bias_k": layer.bias_k, "bias_v": layer.bias_v}
    optional = {"in_proj_bias": layer.bias, "out_proj_bias": layer.out_bias, **learned}
    optional |= dict(zip(("static_k", "static_v"), layer.static, strict=True))
    given = {name: tensor for name, tensor in optional.items() if tensor is not None}
    check_tensors(given, "as torch has it, or None")
    check_like({**needed, **given}, layer.out_weight)
    head_dim = width // layer.heads
    rows = {"in_proj_weight": 3 * width, "in_proj_bias": 3 * width, "out_proj_bias": width}
    fits = {name: tensor.shape[0] == rows.get(name, width) for name, tensor in needed.items() if tensor is not None}
    fits["out_proj_weight"] = tuple(layer.out_weight.shape) == (width, width)
    for name, tensor in given.items():
        if name in learned:
            # torch repeats them for each sequence, so whatever has one row of this width is taken.
            fits[name] = tensor.shape[-1:] == (width,) == (tensor.numel(),) and None not in learned.values()
        elif name in rows:
            fits[name] = tuple(tensor.shape) == (rows[name],)
        else:
            fits[name] = tensor.ndim == 3 and tensor.shape[2] == head_dim and tensor.shape[0] % layer.heads == 0
    wrong = [name for name, fit in fits.items() if not fit]
    if wrong:
        told = {**needed, **given}
        raise MultiheadError(
            asked=f"weights of one layer of width {width} and {layer.heads} heads, bias_k and bias_v both or neither",
            arrived=", ".join(f"{n} {tuple(x.shape)}" for n in wrong if (x := told[n]) is not None),
            remedy="pass the parameters of torch's module as they are",
        )
