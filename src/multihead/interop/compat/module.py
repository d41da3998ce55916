"""`torch.nn.MultiheadAttention`, on our kernels."""

import torch
from torch import Tensor, nn

from multihead.error import MultiheadError
from multihead.interop.compat.check import check_flags, check_made, is_size
from multihead.interop.compat.layer import Projections, Wanted, run_layer
from multihead.interop.compat.masks import TorchMasks
from multihead.layer import Attends


class MultiheadAttention(Attends):
    """A module in place of `torch.nn.MultiheadAttention`: its signature, parameters, masks and results.

    A state dict of torch's module loads here and the other way round, and the same seed gives the same parameters. What
    differs, on purpose:

    - A query that may attend to no key gets 0 from every head and weights of 0, where torch gives NaN.
    - `is_causal` is a rule, not a hint: it holds with and without `attn_mask`, besides it.
    - The weights that are returned are those before dropout. They are computed, from q and k, only when asked for.
    - Training and evaluation, with and without gradients, give the same values; no path of its own for evaluation.
      Inside of `nn.TransformerEncoderLayer` that layer's own path for evaluation, which passes the module by, is off.
    - Nested tensors are refused: build `nn.TransformerEncoder(..., enable_nested_tensor=False)`.

    New models are better off with `multihead.MultiHeadAttention`; `MultiHeadAttention.from_torch` converts.

    Args:
        embed_dim: Width of the queries and of the output.
        num_heads: Number of heads, a divisor of `embed_dim`.
        dropout: Share of the weights dropped in training.
        bias: Whether the projections have one.
        add_bias_kv: Whether a learned key and value stand behind those of the input.
        add_zero_attn: Whether a key and a value of zeros stand behind all others.
        kdim: Width of the keys; None is `embed_dim`.
        vdim: Width of the values; None is `embed_dim`.
        batch_first: Whether inputs and output are (batch, length, width), not (length, batch, width).
        device: Where the parameters are made.
        dtype: Of the parameters.

    Raises:
        MultiheadError: Sizes that are not positive or do not divide.

    Example:
        >>> layer = MultiheadAttention(64, 8, batch_first=True)
        >>> out, weights = layer(*[torch.randn(2, 10, 64)] * 3)
        >>> out.shape, weights.shape
        (torch.Size([2, 10, 64]), torch.Size([2, 10, 10]))
    """

    def __init__(  # noqa: PLR0913 - the signature of torch
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,  # noqa: FBT001, FBT002
        add_bias_kv: bool = False,  # noqa: FBT001, FBT002
        add_zero_attn: bool = False,  # noqa: FBT001, FBT002
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,  # noqa: FBT001, FBT002
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"kdim": kdim, "vdim": vdim}
        told = {"embed_dim": embed_dim, "num_heads": num_heads} | {n: w for n, w in sizes.items() if w is not None}
        wrong = [f"{name}={size!r}" for name, size in told.items() if not is_size(size, least=0)]
        if wrong:
            raise MultiheadError(
                asked="sizes that are whole numbers", arrived=", ".join(wrong)[:200], remedy="for example 512 and 8"
            )
        check_flags(bias=bias, add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn, batch_first=batch_first)
        check_made(device, dtype)
        if min(embed_dim, num_heads) < 1 or embed_dim % num_heads:
            legal = ", ".join(str(n) for n in range(1, embed_dim + 1) if embed_dim % n == 0)
            raise MultiheadError(
                asked="num_heads that divide embed_dim, both positive",
                arrived=f"embed_dim={embed_dim}, num_heads={num_heads}",
                remedy=f"for embed_dim={embed_dim} pass num_heads of {legal}" if legal else "for example 512 and 8",
            )
        super().__init__(dropout=dropout, backend="auto")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        packed = self.kdim == self.vdim == embed_dim

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        # In torch's order, which is that of a state dict.
        self.in_proj_weight = made(3 * embed_dim, embed_dim) if packed else None
        self.q_proj_weight = None if packed else made(embed_dim, embed_dim)
        self.k_proj_weight = None if packed else made(embed_dim, self.kdim)
        self.v_proj_weight = None if packed else made(embed_dim, self.vdim)
        self.in_proj_bias = made(3 * embed_dim) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k = made(1, 1, embed_dim) if add_bias_kv else None
        self.bias_v = made(1, 1, embed_dim) if add_bias_kv else None
        self.reset_parameters()

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """False, whatever the widths: nn.TransformerEncoderLayer then calls this module and computes nothing itself."""
        return False

    def reset_parameters(self) -> None:
        """Start anew as torch does: Xavier-uniform weights (Glorot and Bengio 2010), biases 0."""
        weights = (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        for weight in weights:
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        for learned in (self.bias_k, self.bias_v):
            if learned is not None:
                nn.init.xavier_normal_(learned)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002
        is_causal: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; masks are torch's: True = masked out.

        Args:
            query: (q_len, batch, embed_dim), with `batch_first` (batch, q_len, embed_dim); or (q_len, embed_dim).
            key: (kv_len, batch, kdim), likewise.
            value: (kv_len, batch, vdim), likewise.
            key_padding_mask: (batch, kv_len) or (kv_len,), True = padding, or scores to add.
            need_weights: Whether to compute the weights as well: memory for all of them.
            attn_mask: (q_len, kv_len) or (batch * heads, q_len, kv_len), True = masked out, or scores to add.
            average_attn_weights: Whether the weights are their mean over the heads.
            is_causal: Whether query i sees keys 0..i only, besides what the masks say.

        Returns:
            The output in the layout of the query, and the weights (batch, q_len, kv_len), or (batch, heads, q_len,
            kv_len), or None; without the batch where the inputs had none.

        Raises:
            MultiheadError: Inputs or masks that do not belong together.
        """
        check_flags(need_weights=need_weights, average_attn_weights=average_attn_weights, is_causal=is_causal)
        return run_layer(
            (query, key, value),
            self._projections(),
            TorchMasks(key_padding_mask=key_padding_mask, attn_mask=attn_mask, is_causal=is_causal),
            Wanted(
                attend=self.attended,
                length_first=not self.batch_first,
                weights=need_weights,
                average=average_attn_weights,
            ),
        )

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        return f"{self.embed_dim}, {self.num_heads}" + ", batch_first=True" * self.batch_first

    def _projections(self) -> Projections:
        q, k, v = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        return Projections(
            heads=self.num_heads,
            packed=self.in_proj_weight,
            apart=None if q is None or k is None or v is None else (q, k, v),
            bias=self.in_proj_bias,
            out_weight=self.out_proj.weight,
            out_bias=self.out_proj.bias,
            bias_k=self.bias_k,
            bias_v=self.bias_v,
            add_zero=self.add_zero_attn,
        )
