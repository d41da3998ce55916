"""The module: projections, heads, concatenation, output projection."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attend import Problem, attention, choose, make_problem
from multihead.error import MultiheadError
from multihead.pattern import Pattern
from multihead.position import ALiBi, RelativeTable


class MultiHeadAttention(nn.Module):
    """`MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O`, `head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i)`.

    Vaswani et al., "Attention Is All You Need" (2017), arXiv:1706.03762. `Attention` is `multihead.attention`: softmax
    of the scaled products, within the pairs that the mask allows. Inputs are (batch, length, width), batch first.

    Beyond the paper: biases in the projections, fewer key/value heads than query heads (query head i reads key/value
    head i // (heads / kv_heads)), heads of a size of their own. A query that may attend to no key gets 0 from every
    head, so its output is the bias of the output projection. Training and evaluation, with and without gradients, give
    the same values; only dropout, which is off in evaluation, makes a difference.

    Args:
        embed_dim: Width of the queries and of the output.
        heads: Query heads.
        kv_heads: Key/value heads, a divisor of `heads`; None for as many as query heads.
        head_dim: Width of a head; None for `embed_dim / heads`.
        kv_embed_dim: Width of the keys and values given to `forward`, or (width of keys, width of values); None for
            `embed_dim`.
        bias: Whether the four projections have one.
        dropout: Share of the attention weights dropped in training.
        backend: `"auto"`, or the name of the backend that must run.

    Attributes:
        q_proj: (heads * head_dim, embed_dim): rows h * head_dim to (h + 1) * head_dim are those of head h.
        k_proj: (kv_heads * head_dim, width of keys).
        v_proj: (kv_heads * head_dim, width of values).
        out_proj: (embed_dim, heads * head_dim).

    Raises:
        MultiheadError: Sizes that do not divide or are not positive, or a dropout outside of 0 <= p < 1.

    Example:
        >>> layer = MultiHeadAttention(64, heads=8, kv_heads=2)
        >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int = 8,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        kv_embed_dim: int | tuple[int, int] | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        widths = (kv_embed_dim, kv_embed_dim) if isinstance(kv_embed_dim, int) else kv_embed_dim
        k_width, v_width = widths or (embed_dim, embed_dim)
        _check_positive(
            {
                "embed_dim": embed_dim,
                "heads": heads,
                "kv_heads": kv_heads,
                "head_dim": 1 if head_dim is None else head_dim,
            }
            | {"kv_embed_dim": min(k_width, v_width)}
        )
        _check_groups(heads, kv_heads)
        if not 0.0 <= dropout < 1.0:
            raise MultiheadError(
                asked="dropout: a share p with 0 <= p < 1",
                arrived=f"dropout={dropout}",
                remedy="for example dropout=0.1",
            )
        self.embed_dim, self.heads, self.kv_heads = embed_dim, heads, kv_heads
        self.head_dim = _head_dim(embed_dim, heads) if head_dim is None else head_dim
        self.dropout, self.backend = dropout, backend
        self.q_proj = nn.Linear(embed_dim, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(k_width, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(v_width, kv_heads * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(heads * self.head_dim, embed_dim, bias=bias)
        self.reset_parameters()

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, *, backend: str = "auto") -> "MultiHeadAttention":
        """A module with a copy of the weights of an `nn.MultiheadAttention`, its dropout, dtype, device and mode.

        Two things differ in use. Inputs are (batch, length, width), also where the module's were length first. In masks
        True = attend: its `key_padding_mask` (True = padding) becomes `mask=padding(~key_padding_mask)`, its boolean
        `attn_mask` becomes `mask=~attn_mask`, its floating `attn_mask` becomes `bias=attn_mask`.

        Raises:
            MultiheadError: It was built with `add_bias_kv` or `add_zero_attn`: keys that no input has.

        Example:
            `layer = MultiHeadAttention.from_torch(encoder.layers[0].self_attn)`
        """
        extra = {"add_bias_kv=True": module.bias_k is not None, "add_zero_attn=True": module.add_zero_attn}
        found = [name for name, present in extra.items() if present]
        if found:
            raise MultiheadError(
                asked="an nn.MultiheadAttention whose keys are those of its input",
                arrived=f"{' and '.join(found)}: another key stands behind them in every row, outside of every mask",
                remedy="build it without; for a head that may attend to nothing, multihead.attention has "
                "normaliser=Softmax(off_by_one=True)",
            )
        weights = _weights_of(module)
        made = cls(
            module.embed_dim,
            module.num_heads,
            kv_embed_dim=(weights["k_proj.weight"].shape[1], weights["v_proj.weight"].shape[1]),
            bias="q_proj.bias" in weights,
            dropout=module.dropout,
            backend=backend,
        )
        made.to(weights["q_proj.weight"]).load_state_dict(weights)
        return made.train(module.training)

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights (Glorot and Bengio 2010), biases 0."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Pattern | Tensor | None = None,
        bias: Tensor | ALiBi | RelativeTable | None = None,
        q_offset: int | None = None,
    ) -> Float[Tensor, "batch q_len embed_dim"]:
        """Attend: self-attention with one input, cross-attention with two or three.

        Args:
            query: (batch, q_len, embed_dim).
            key: (batch, kv_len, width of keys); the query where it is not given.
            value: (batch, kv_len, width of values); the key where it is not given.
            mask: Which pairs are allowed: a pattern, or a boolean tensor (q_len, kv_len) or (batch | 1, heads | 1,
                q_len | 1, kv_len | 1), True = attend. `padding(keep)` keeps out padding.
            bias: Added to the scores: a tensor of such a shape, or a bias of positions.
            q_offset: Position of the first query, where the first key has position 0.

        Returns:
            (batch, q_len, embed_dim).

        Raises:
            MultiheadError: Shapes that do not belong together, or anything that `multihead.attention` refuses.
        """
        key, value = self._inputs(query, key, value)
        out = self._heads(
            _split(self.q_proj(query), self.heads),
            _split(self.k_proj(key), self.kv_heads),
            _split(self.v_proj(value), self.kv_heads),
            mask=mask,
            bias=bias,
            q_offset=q_offset,
        )
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def attend(self, problem: Problem) -> Float[Tensor, "batch heads q_len v_head_dim"]:
        """The heads of one call, before they are joined: what is watched, gated and replaced."""
        return choose(problem, self.backend).run(problem)[0]

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, heads={self.heads}, head_dim={self.head_dim}"
        shown += f", kv_heads={self.kv_heads}" if self.kv_heads != self.heads else ""
        shown += f", dropout={self.dropout:g}" if self.dropout else ""
        return shown + (f", backend={self.backend!r}" if self.backend != "auto" else "")

    def _heads(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Pattern | Tensor | None,
        bias: Tensor | ALiBi | RelativeTable | None,
        q_offset: int | None,
    ) -> Tensor:
        """The heads of one call: (batch, heads, q_len, v_head_dim)."""
        dropout = self.dropout if self.training else 0.0
        _ = self.attend  # the compiler takes note of what it is: a graph made before somebody looked is made anew
        if "attend" not in vars(self) and type(self).attend is MultiHeadAttention.attend:
            # Nobody looks at the problem: the function need not make one of a call it knows, nor in a graph.
            return attention(q, k, v, mask=mask, bias=bias, dropout=dropout, q_offset=q_offset, backend=self.backend)

        seen: Callable[..., Tensor] = self._seen
        if torch.compiler.is_compiling():
            # Whoever looks at a problem looks at numbers: a compiled graph is cut around it, once. No decorator: that
            # would import the compiler, slowly.
            seen = cast(Callable[..., Tensor], torch.compiler.disable(self._seen))
        return seen(q, k, v, mask=mask, bias=bias, dropout=dropout, q_offset=q_offset)

    def _seen(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        """The same by `attend`, which somebody looks at."""
        return self.attend(make_problem(q, k, v, **given))

    def _inputs(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values with their defaults, checked against the queries."""
        if key is None and value is not None:
            raise MultiheadError(
                asked="keys for the values",
                arrived=f"key=None with value {tuple(value.shape)}",
                remedy="pass the keys as well",
            )
        key = query if key is None else key
        value = key if value is None else value
        linears = {"query": self.q_proj, "key": self.k_proj, "value": self.v_proj}
        given = {"query": query, "key": key, "value": value}
        for name, tensor in given.items():
            width = linears[name].in_features
            if tensor.ndim != 3 or tensor.shape[2] != width:
                raise MultiheadError(
                    asked=f"{name} (batch, length, {width})",
                    arrived=_shapes(given),
                    remedy="pass inputs of this shape, batch first: `x[None]` for one sequence; the widths are set by "
                    "embed_dim and kv_embed_dim",
                )
        if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
            raise MultiheadError(
                asked="one batch size for query, key and value, and one length for key and value",
                arrived=_shapes(given),
                remedy="pass inputs as (batch, length, width): `x.transpose(0, 1)` where the length comes first",
            )
        return key, value


def _shapes(given: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given.items())


def _split(joined: Tensor, heads: int) -> Tensor:
    """(batch, length, heads * dim) as (batch, heads, length, dim), a view."""
    return joined.unflatten(2, (heads, -1)).transpose(1, 2)


def _check_positive(sizes: Mapping[str, int]) -> None:
    wrong = [f"{name}={size}" for name, size in sizes.items() if size < 1]
    if wrong:
        raise MultiheadError(
            asked="sizes of at least 1", arrived=", ".join(wrong), remedy="for example embed_dim=512, heads=8"
        )


def _head_dim(embed_dim: int, heads: int) -> int:
    if embed_dim % heads:
        raise MultiheadError(
            asked="heads that divide embed_dim evenly",
            arrived=f"embed_dim={embed_dim}, heads={heads}: {embed_dim} / {heads} = {embed_dim / heads:.4g}",
            remedy=f"heads={_listed(_divisors(embed_dim), heads)}, or heads of another size with head_dim=",
        )
    return embed_dim // heads


def _check_groups(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        raise MultiheadError(
            asked="kv_heads that divide heads evenly",
            arrived=f"heads={heads}, kv_heads={kv_heads}",
            remedy=f"kv_heads={_listed(_divisors(heads), kv_heads)}",
        )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: list[int], near: int, *, most: int = 8) -> str:
    """The numbers nearest to one, in order: `2, 4 or 8`."""
    nearest = sorted(sorted(numbers, key=lambda n: abs(n - near))[:most])
    *others, last = map(str, nearest)
    return f"{', '.join(others)} or {last}" if others else last


def _weights_of(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """The weights of an nn.MultiheadAttention under our names, its packed ones taken apart."""
    given = module.state_dict()
    if "in_proj_weight" in given:
        weights = given["in_proj_weight"].chunk(3)
    else:
        weights = tuple(given[f"{name}_proj_weight"] for name in "qkv")
    named = {f"{name}_proj.weight": weight for name, weight in zip("qkv", weights, strict=True)}
    if "in_proj_bias" in given:
        named |= {f"{name}_proj.bias": bias for name, bias in zip("qkv", given["in_proj_bias"].chunk(3), strict=True)}
    return named | {name: weight for name, weight in given.items() if name.startswith("out_proj.")}
