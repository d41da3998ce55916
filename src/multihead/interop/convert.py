"""Attention modules of transformers as modules of ours, with the same weights and the same answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from multihead.error import MultiheadError
from multihead.layer import Attends, HeadGroup, Latent, LatentAttention, MultiHeadAttention, QKNorm, Scoring
from multihead.pattern import Pattern, causal, sliding_window
from multihead.position import PositionBias, RelativeTable, Rotary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    """What a module of transformers is, in our words.

    Args:
        linears: Weight (out, in) and bias or None of `q_proj`, `k_proj`, `v_proj`, `out_proj`.
        heads: Query heads.
        kv_heads: Key/value heads.
        scoring: How scores are made.
        mask: Pairs its layer is kept to.
        position: What it does about positions by itself.
        dropout: Of the weights.
        learned: What a group learns besides, by its name in our state dict.
    """

    linears: Mapping[str, tuple[Tensor, Tensor | None]]
    heads: int
    kv_heads: int
    scoring: Scoring
    mask: Pattern | None = None
    position: Rotary | PositionBias | None = None
    dropout: float = 0.0
    learned: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


def from_transformers(module: nn.Module, *, backend: str = "auto") -> Attends:
    """A module of ours with a copy of the weights of an attention module of a transformers model.

    It gives what the module gives, before dropout, residual and layer norm: projections, heads, output projection.
    Rotary positions, norms of queries and keys, sinks, softcap, a causal rule and windows are in it; padding is given
    in the call, `mask=padding(keep)`. Families: BERT, GPT-2, Llama, Mistral, Qwen 3, Gemma 2 and 3, GPT-OSS,
    DeepSeek-V3, T5, BART, ViT, CLIP, Whisper.

    Where only some projections have a bias, the others get one of 0. T5 keeps its table of distances in the first layer
    and uses it in all: give it to the others as `bias=first.parts[0].position_bias`. CLIP's text tower makes its causal
    rule outside of its layers, and `LatentAttention` has no pattern of its own: call these with `mask=causal()`.

    Args:
        module: For example `model.layers[0].self_attn`; of BERT the `attention` with its output projection.
        backend: As in `MultiHeadAttention`.

    Returns:
        `MultiHeadAttention`, for DeepSeek-V3 `LatentAttention`, in the dtype, on the device and in the mode of the
        module.

    Raises:
        MultiheadError: A module of another kind.

    Example:
        >>> layer = from_transformers(model.model.layers[0].self_attn)  # doctest: +SKIP
    """
    name = type(module).__name__
    if name == _LATENT:
        return _latent(cast(Any, module), backend).train(module.training)
    if name not in READERS:
        raise MultiheadError(
            asked="an attention module of transformers whose answer is known to be the same here",
            arrived=name,
            remedy=f"pass one of {', '.join([*READERS, _LATENT])}; register_transformers() runs any model on our "
            "kernels as it is",
        )
    return _built(READERS[name](cast(Any, module)), backend).train(module.training)


def _built(read: Read, backend: str) -> MultiHeadAttention:
    q, k, v = (read.linears[name][0] for name in ("q_proj", "k_proj", "v_proj"))
    group = HeadGroup(
        read.heads,
        q.shape[0] // read.heads,
        kv_heads=read.kv_heads,
        v_head_dim=v.shape[0] // read.kv_heads,
        mask=read.mask,
        position=read.position,
        scoring=read.scoring,
    )
    made = MultiHeadAttention(
        q.shape[1],
        group,
        kv_embed_dim=(k.shape[1], v.shape[1]),
        bias=any(bias is not None for _, bias in read.linears.values()),
        dropout=read.dropout,
        backend=backend,
    ).to(q)
    state = {f"parts.0.{name}": weight for name, weight in read.learned.items()}
    for name, (weight, bias) in read.linears.items():
        state[f"{name}.weight"] = weight
        if f"{name}.bias" in made.state_dict():
            state[f"{name}.bias"] = weight.new_zeros(weight.shape[0]) if bias is None else bias
    made.load_state_dict(state)
    return made


def _linears(module: Any, names: tuple[str, str, str, str]) -> dict[str, tuple[Tensor, Tensor | None]]:
    ours = ("q_proj", "k_proj", "v_proj", "out_proj")
    found = {our: module.get_submodule(name) for our, name in zip(ours, names, strict=True)}
    return {our: (linear.weight.detach(), _detached(linear.bias)) for our, linear in found.items()}


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


def _rotating(module: Any) -> Read:
    """Llama and its kin: grouped heads, rotary positions; norms, windows, softcap and sinks where they have them."""
    config = module.config
    layer_type = getattr(module, "layer_type", None)
    rotary = Rotary.from_config(config.to_dict(), head_dim=module.head_dim, layer_type=layer_type)
    linears = _linears(module, ("q_proj", "k_proj", "v_proj", "o_proj"))
    window = getattr(module, "sliding_window", None)
    if not hasattr(module, "sliding_window"):
        window = getattr(config, "sliding_window", None)  # Mistral's module does not hold its own
    learned: dict[str, Tensor] = {}
    norm = None
    if (q_norm := getattr(module, "q_norm", None)) is not None:
        # Gemma's norms multiply by 1 + weight.
        shift = 1.0 if type(q_norm).__name__.startswith("Gemma") else 0.0
        norm = QKNorm(eps=getattr(q_norm, "variance_epsilon", getattr(q_norm, "eps", 1e-6)))
        learned = {f"{name}.weight": getattr(module, name).weight.detach() + shift for name in ("q_norm", "k_norm")}
    if (sinks := getattr(module, "sinks", None)) is not None:
        learned["sinks"] = sinks.detach()
    softcap = getattr(module, "attn_logit_softcapping", None)
    return Read(
        linears=linears,
        heads=linears["q_proj"][0].shape[0] // module.head_dim,
        kv_heads=linears["k_proj"][0].shape[0] // module.head_dim,
        scoring=Scoring(norm=norm, scale=module.scaling, softcap=softcap, sinks=sinks is not None),
        mask=(sliding_window(window) if window is not None else causal()) if module.is_causal else None,
        position=rotary,
        dropout=module.attention_dropout,
        learned=learned,
    )


def _bert(module: Any) -> Read:
    inner = module.self
    return Read(
        linears=_linears(module, ("self.query", "self.key", "self.value", "output.dense")),
        heads=inner.num_attention_heads,
        kv_heads=inner.num_attention_heads,
        scoring=Scoring(scale=inner.scaling),
        mask=causal() if inner.is_causal else None,
        dropout=inner.dropout.p,
    )


def _gpt2(module: Any) -> Read:
    """Its linear maps hold their weights the other way round; q, k and v are one."""
    weight, bias = module.c_attn.weight.detach().T, module.c_attn.bias.detach()
    given = zip(weight.chunk(3), bias.chunk(3), strict=True)
    if module.is_cross_attention:
        query = (module.q_attn.weight.detach().T, module.q_attn.bias.detach())
        given = [query, *zip(weight.chunk(2), bias.chunk(2), strict=True)]
    linears: dict[str, tuple[Tensor, Tensor | None]] = dict(zip(("q_proj", "k_proj", "v_proj"), given, strict=True))
    linears["out_proj"] = module.c_proj.weight.detach().T, module.c_proj.bias.detach()
    return Read(
        linears=linears,
        heads=module.num_heads,
        kv_heads=module.num_heads,
        scoring=Scoring(scale=module.scaling),
        mask=None if module.is_cross_attention else causal(),
        dropout=module.attn_dropout.p,
    )


def _t5(module: Any) -> Read:
    position = None
    if module.has_relative_attention_bias:
        position = RelativeTable(
            nn.Parameter(module.relative_attention_bias.weight.detach().clone()),
            bidirectional=not module.is_decoder,
            max_distance=module.relative_attention_max_distance,
        )
    return Read(
        linears=_linears(module, ("q", "k", "v", "o")),
        heads=module.n_heads,
        kv_heads=module.n_heads,
        scoring=Scoring(scale=module.scaling),
        mask=causal() if module.is_causal else None,
        position=position,
        dropout=module.dropout,
        learned={} if position is None else {"bias": position.table.detach()},
    )


def _plain(out: str) -> Callable[[Any], Read]:
    """BART, Whisper, ViT, CLIP: four linear maps."""

    def read(module: Any) -> Read:
        scale = module.scaling if hasattr(module, "scaling") else module.scale
        heads = module.num_heads if hasattr(module, "num_heads") else module.num_attention_heads
        dropout = module.attention_dropout if hasattr(module, "attention_dropout") else module.dropout
        return Read(
            linears=_linears(module, ("q_proj", "k_proj", "v_proj", out)),
            heads=heads,
            kv_heads=heads,
            scoring=Scoring(scale=scale),
            mask=causal() if module.is_causal else None,
            dropout=dropout,
        )

    return read


_LATENT = "DeepseekV3Attention"
_LATENT_NAMES = {
    "q_proj": "q_proj",
    "q_a_proj": "q_down",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "q_up",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "kv_up",
    "o_proj": "out_proj",
}


def _latent(module: Any, backend: str) -> LatentAttention:
    made = LatentAttention(
        module.hidden_size,
        module.num_heads,
        Latent(
            module.kv_lora_rank,
            nope_dim=module.qk_nope_head_dim,
            rope_dim=module.qk_rope_head_dim,
            v_dim=module.v_head_dim,
            q_rank=module.q_lora_rank,
            eps=module.kv_a_layernorm.variance_epsilon,
        ),
        position=Rotary.from_config(module.config.to_dict(), head_dim=module.qk_rope_head_dim),
        scoring=Scoring(scale=module.scaling),
        bias=module.o_proj.bias is not None,
        dropout=module.attention_dropout,
        backend=backend,
    ).to(module.o_proj.weight)
    state: dict[str, Tensor] = {}
    for path, weight in module.state_dict().items():
        name, kind = path.split(".")
        state[f"{_LATENT_NAMES[name]}.{kind}"] = weight
    made.load_state_dict(state)
    return made


READERS: Mapping[str, Callable[[Any], Read]] = {
    "BertAttention": _bert,
    "GPT2Attention": _gpt2,
    "LlamaAttention": _rotating,
    "MistralAttention": _rotating,
    "Qwen3Attention": _rotating,
    "Gemma2Attention": _rotating,
    "Gemma3Attention": _rotating,
    "GptOssAttention": _rotating,
    "T5Attention": _t5,
    "BartAttention": _plain("out_proj"),
    "ViTAttention": _plain("o_proj"),
    "CLIPAttention": _plain("out_proj"),
    "WhisperAttention": _plain("out_proj"),
}
