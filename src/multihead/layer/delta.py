"""Gated DeltaNet: a state that is written under keys, with what was there replaced."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, silu, softplus

from multihead.error import MultiheadError, check_kinds
from multihead.layer.call import check_arguments, check_inputs
from multihead.layer.check import check_counts, check_eps, divided
from multihead.layer.group import HeadGroup, QKNorm
from multihead.layer.linear import restart
from multihead.layer.part import Norm
from multihead.layer.scan_cache import StateCache, check_cache
from multihead.layer.scan_mask import Order, check_causal
from multihead.layer.support import Support
from multihead.pattern import Pattern, causal
from multihead.scan import DeltaState, delta_rule

_CAUSAL = causal()
# Keeps keys of length 0 finite when they are brought to length 1, as in Qwen3-Next.
_EPS = 1e-6
_STEPS = (1e-3, 0.1)
"""With steps of about 1, as in Qwen3-Next's configuration class, which expects trained weights, most heads would forget
a token before the next one comes, and do not learn to keep any."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaNetState:
    """What `GatedDeltaNet` keeps of earlier tokens.

    Args:
        inputs: The last inputs of the convolution, (batch, conv_width - 1, channels); 0 where there were none.
        written: The state of the delta rule.
    """

    inputs: Float[Tensor, "batch taps channels"]
    written: DeltaState

    def select(self, rows: Tensor) -> "DeltaNetState":
        """The state of these batch rows, in this order."""
        return DeltaNetState(inputs=self.inputs.index_select(0, rows), written=self.written.select(rows))


class GatedDeltaNet(nn.Module):
    """Gated DeltaNet, the linear attention of Qwen3-Next: causal, in linear time, with a state that does not grow.

    Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464. Queries, keys and values go through a causal convolution of
    each channel and SiLU; queries and keys are brought to length 1, queries multiplied by head_dim ** -0.5. With `beta
    = sigmoid(x W_beta)` and `log_decay = -exp(log_rate) * softplus(x W_decay + dt_bias)`, one a token and head,
    `delta_rule` makes the heads; they are normalised (RMS, one weight for all) and multiplied by `silu(x W_gate)`.
    No projection has a bias.

    Args:
        embed_dim: Width of the tokens.
        heads: Heads of values, each with a state.
        key_heads: Heads of queries and keys, a divisor of `heads`; None for as many. Value head h goes with key head h
            // (heads // key_heads).
        head_dim: Width of queries and keys; None for `embed_dim / heads`.
        v_head_dim: Width of values; None for `head_dim`.
        conv_width: Tokens the convolution sees, itself included.
        negative_eigenvalues: Whether beta is twice as large, up to 2 (Grazzi et al. 2024, arXiv:2411.12537).
        eps: Of the norm.

    Attributes:
        q_proj: (key_heads * head_dim, embed_dim).
        k_proj: (key_heads * head_dim, embed_dim).
        v_proj: (heads * v_head_dim, embed_dim).
        gate_proj: W_gate, (heads * v_head_dim, embed_dim).
        beta_proj: W_beta, (heads, embed_dim).
        decay_proj: W_decay, (heads, embed_dim).
        conv: (channels of q, k and v, conv_width): factors of the token `conv_width - 1` back, ..., of itself.
        log_rate: (heads,).
        dt_bias: (heads,).
        norm: With a weight (v_head_dim,).
        out_proj: (embed_dim, heads * v_head_dim).

    Raises:
        MultiheadError: Sizes that do not divide.

    Example:
        >>> GatedDeltaNet(64, heads=4, key_heads=2)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    SUPPORT: ClassVar[Support] = Support(bidirectional=False, cross=False, patterns=False)

    def __init__(
        self,
        embed_dim: int,
        heads: int = 8,
        *,
        key_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        conv_width: int = 4,
        negative_eigenvalues: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        check_counts({"embed_dim": embed_dim, "heads": heads, "conv_width": conv_width})
        check_kinds({"negative_eigenvalues": negative_eigenvalues}, (bool,), "True or False")
        check_eps("GatedDeltaNet", eps)
        head_dim = divided(embed_dim, heads) if head_dim is None else head_dim
        group = HeadGroup(heads, head_dim, kv_heads=key_heads, v_head_dim=v_head_dim).settled(embed_dim, alone=True)
        self.embed_dim, self.conv_width, self.negative_eigenvalues = embed_dim, conv_width, negative_eigenvalues
        self.heads, self.key_heads, self.head_dim, self.v_head_dim = group.sizes
        self.groups = (group,)
        key_width, value_width = self.key_heads * self.head_dim, self.heads * self.v_head_dim
        self.q_proj = nn.Linear(embed_dim, key_width, bias=False)
        self.k_proj = nn.Linear(embed_dim, key_width, bias=False)
        self.v_proj = nn.Linear(embed_dim, value_width, bias=False)
        self.gate_proj = nn.Linear(embed_dim, value_width, bias=False)
        self.beta_proj = nn.Linear(embed_dim, heads, bias=False)
        self.decay_proj = nn.Linear(embed_dim, heads, bias=False)
        self.conv = nn.Parameter(torch.empty(2 * key_width + value_width, conv_width))
        self.log_rate = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.norm = Norm(QKNorm(eps=eps), heads, self.v_head_dim)
        self.out_proj = nn.Linear(value_width, embed_dim, bias=False)
        self.reset_parameters()

    @classmethod
    def from_qwen(cls, state: Mapping[str, Tensor], *, key_heads: int, eps: float = 1e-6) -> "GatedDeltaNet":
        """A module with the weights of a layer `linear_attn` of Qwen3-Next.

        Args:
            state: Its state dict: `in_proj_qkvz.weight`, `in_proj_ba.weight`, `conv1d.weight`, `A_log`, `dt_bias`,
                `norm.weight`, `out_proj.weight`.
            key_heads: `linear_num_key_heads` of its config, which no weight tells.
            eps: `rms_norm_eps` of its config.

        Raises:
            MultiheadError: A tensor is missing, or sizes do not belong together.

        Example:
            `layer = GatedDeltaNet.from_qwen(model.model.layers[0].linear_attn.state_dict(), key_heads=16)`
        """
        missing = [name for name in _QWEN if name not in state]
        if missing:
            raise MultiheadError(
                asked=f"the state dict of a Qwen3NextGatedDeltaNet: {', '.join(_QWEN)}",
                arrived=f"without {', '.join(missing)}",
                remedy="pass model.model.layers[i].linear_attn.state_dict() of a layer of linear attention",
            )
        check_counts({"key_heads": key_heads})
        heads, v_head_dim = state["A_log"].numel(), state["norm.weight"].numel()
        embed_dim = state["in_proj_qkvz.weight"].shape[1]
        key_width = (state["conv1d.weight"].shape[0] - heads * v_head_dim) // 2
        made = cls(
            embed_dim,
            heads,
            key_heads=key_heads,
            head_dim=divided(key_width, key_heads),
            v_head_dim=v_head_dim,
            conv_width=state["conv1d.weight"].shape[2],
            eps=eps,
        )
        share = heads // key_heads
        sizes = [made.head_dim, made.head_dim, share * v_head_dim, share * v_head_dim]
        mixed = state["in_proj_qkvz.weight"].unflatten(0, (key_heads, -1)).split(sizes, 1)
        both = state["in_proj_ba.weight"].unflatten(0, (key_heads, -1)).split([share, share], 1)
        q, k, v, gate, beta, decay = (part.flatten(0, 1) for part in (*mixed, *both))
        named = {"q_proj": q, "k_proj": k, "v_proj": v, "gate_proj": gate, "beta_proj": beta, "decay_proj": decay}
        named["norm"], named["out_proj"] = state["norm.weight"], state["out_proj.weight"]
        weights = {f"{name}.weight": weight for name, weight in named.items()}
        weights |= {"conv": state["conv1d.weight"][:, 0], "log_rate": state["A_log"], "dt_bias": state["dt_bias"]}
        made.to(q).load_state_dict(weights)
        return made

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform weights, the norm 1, rates uniform in 0.01 to 16, and steps that remember.

        `softplus(dt_bias)`, the step of a token without content, is log-uniform in 0.001 to 0.1 (as in Mamba: Gu and
        Dao 2023, arXiv 2312.00752), so that heads begin with half-lives from half a token to tens of thousands.
        """
        restart(self)
        bound = self.conv_width**-0.5
        with torch.no_grad():
            self.conv.uniform_(-bound, bound)
            self.log_rate.uniform_(0.01, 16.0).log_()
            step = self.dt_bias.uniform_(*map(math.log, _STEPS)).exp()
            self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step

    def widths(self) -> dict[str, int]:
        """Input width."""
        return {"query": self.embed_dim}

    def cache(self, *, batch: int) -> StateCache:
        """An empty state for decoding: `layer(x, cache=cache)`, step by step or chunk by chunk.

        Args:
            batch: Number of sequences.
        """
        return StateCache(batch=batch, sizes=self._sizes)

    def forward(
        self, x: Tensor, *, mask: Pattern | Tensor | None = _CAUSAL, cache: StateCache | None = None
    ) -> Float[Tensor, "batch length embed_dim"]:
        """Attend.

        Args:
            x: (batch, length, embed_dim).
            mask: `causal()`, `causal() & padding(keep)`, `causal() & document(ids)`: the convolution does not look over
                the start of a document either, and padding is 0 to it.
            cache: Earlier tokens, to which these are added.

        Raises:
            MultiheadError: A mask that a state cannot keep to, or that is not causal.
        """
        check_arguments({"query": x}, {}, mask)
        check_cache(cache)
        check_inputs(self, {"query": x})
        if cache is not None:
            cache.check(self, self._sizes, x.shape[0])
        order = Order.of(mask, x, start=0 if cache is None else cache.length)
        check_causal(order, "gated DeltaNet")
        before = None if cache is None else cast("DeltaNetState | None", cache.state)
        real = x if order.valid is None else x.masked_fill(~order.valid[..., None], 0.0)
        mixed = torch.cat([self.q_proj(real), self.k_proj(real), self.v_proj(real)], -1)
        mixed, inputs = self._convolved(mixed, None if before is None else before.inputs, order.reset)
        made = delta_rule(
            *self._split(mixed),
            self._heads_of(self.beta_proj(real)).sigmoid() * (2.0 if self.negative_eigenvalues else 1.0),
            log_decay=self.log_decay(real),
            state=None if before is None else before.written,
            reset=order.reset,
            valid=order.valid,
        )
        heads = self.norm(made.out).transpose(1, 2).flatten(2)
        gate = self.gate_proj(real)
        wide = torch.promote_types(gate.dtype, torch.float32)
        out = self.out_proj((heads * silu(gate.to(wide))).to(heads.dtype))
        if cache is not None:
            cache.put(DeltaNetState(inputs=inputs, written=made.state), x.shape[1])
        return out

    def log_decay(self, x: Float[Tensor, "batch length embed_dim"]) -> Float[Tensor, "batch heads length"]:
        """The logarithm of the share of its state that each head keeps at each token, in float32 or wider.

        Args:
            x: As `forward` gets it.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        rate = self.log_rate.to(wide).exp()
        return self._heads_of(-rate * softplus(self.decay_proj(x).to(wide) + self.dt_bias.to(wide)))

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.embed_dim}, heads={self.heads}, head_dim={self.head_dim}"
        shown += f", key_heads={self.key_heads}" if self.key_heads != self.heads else ""
        shown += f", v_head_dim={self.v_head_dim}" if self.v_head_dim != self.head_dim else ""
        return f"{shown}, conv_width={self.conv_width}"

    def _heads_of(self, numbers: Tensor) -> Tensor:
        return numbers.transpose(1, 2)

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys of length 1, and values, (batch, heads, length, width)."""
        width = self.key_heads * self.head_dim
        q, k, v = mixed.split([width, width, self.heads * self.v_head_dim], -1)
        share = self.heads // self.key_heads
        q, k = (_unit(x.unflatten(2, (self.key_heads, -1))).repeat_interleave(share, 2) for x in (q, k))
        v = v.unflatten(2, (self.heads, -1)).to(q.dtype)
        return (q * self.head_dim**-0.5).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _convolved(self, mixed: Tensor, inputs: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """Each channel convolved with those before, SiLU; and the last inputs."""
        back, length = self.conv_width - 1, mixed.shape[1]
        joined = pad(mixed, (0, 0, back, 0)) if inputs is None else torch.cat([inputs.to(mixed.dtype), mixed], 1)
        count = None if reset is None else pad(reset.long().cumsum(1), (back, 0))
        out = joined[:, back:] * self.conv[:, back]
        for place in range(back):
            taken = joined[:, place : place + length]
            if count is not None:
                taken = taken.masked_fill((count[:, place : place + length] != count[:, back:])[..., None], 0.0)
            out = out + taken * self.conv[:, place]
        last = joined[:, length:]
        if count is not None:
            last = last.masked_fill((count[:, length:] != count[:, -1:])[..., None], 0.0)
        return silu(out), last

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (self.heads, self.head_dim, self.v_head_dim, self.conv_width)


_QWEN = (
    "in_proj_qkvz.weight",
    "in_proj_ba.weight",
    "conv1d.weight",
    "A_log",
    "dt_bias",
    "norm.weight",
    "out_proj.weight",
)


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1, nearly; 0 stays 0."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + _EPS)).to(x.dtype)
