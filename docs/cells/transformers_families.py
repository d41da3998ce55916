# ruff: noqa: D103 - a row's title says what its cell does
"""transformers: the other kinds of attention, as layers of its models have them."""

import torch
from transformers import DeepseekV32Config, IdeficsConfig, JetMoeConfig, ReformerConfig
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention, DeepseekV32RotaryEmbedding
from transformers.models.idefics.perceiver import IdeficsPerceiverResampler
from transformers.models.jetmoe.modeling_jetmoe import JetMoeAttention, load_balancing_loss_func
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from cells import law_families as law
from cells.law import CAUSAL, HEAD_DIM, HEADS, LENGTH, WIDTH, Wrong, note

HIDDEN = torch.zeros(LENGTH, LENGTH).masked_fill(~CAUSAL, torch.finfo(torch.float32).min)[None, None]


def turned(s, decay):
    """The setting as its delta rules are given it: (batch, length, heads, width)."""
    keys = torch.nn.functional.normalize(s.k, dim=-1)
    named = {"query": s.q, "key": keys, "value": s.v, "g": decay, "beta": s.beta}
    return {name: x.transpose(1, 2) for name, x in named.items()}


@note("a function of its Qwen3-Next")
def gated_delta(s):
    given = turned(s, s.decay[..., 0])
    return torch_chunk_gated_delta_rule(**given)[0].transpose(1, 2)


@note("a function of its Qwen3-Next")
def gated_delta_steps(s):
    given = turned(s, s.decay[..., 0])
    state, found = None, []
    for t in range(LENGTH):
        step = {name: x[:, t : t + 1] for name, x in given.items()}
        value, state = torch_recurrent_gated_delta_rule(**step, initial_state=state, output_final_state=True)
        found.append(value)
    return torch.cat(found, 1).transpose(1, 2)


@note("a function of its Kimi-Linear")
def channel_delta(s):
    given = turned(s, s.decay)
    return chunk_kimi_delta_attention(**given)[0].transpose(1, 2)


@note("the layer of DeepSeek-V3.2")
def indexed(s):
    made = DeepseekV32Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=law.RANK,
        kv_lora_rank=8,
        qk_nope_head_dim=4,
        qk_rope_head_dim=4,
        v_head_dim=8,
        index_n_heads=law.INDEX_HEADS,
        index_head_dim=8,
        index_topk=law.INDEX_BUDGET,
        attn_implementation="eager",
    )
    inner = DeepseekV32Attention(made, 0).eval()
    weights = {
        "q_a_proj": s.spare[0],
        "q_b_proj": s.weights["q"],
        "kv_a_proj_with_mqa": s.weights["k"],
        "kv_b_proj": torch.cat([s.weights["v"], s.weights["k"][12:28]]),
        "o_proj": s.weights["out"],
        "indexer.wq_b": law.taken(s, 4, 8 * law.INDEX_HEADS, law.RANK),
        "indexer.wk": s.spare[2],
        "indexer.weights_proj": s.spare[3],
    }
    fill(inner, {f"{name}.weight": weight for name, weight in weights.items()} | {"kv_a_layernorm.weight": s.norms[0]})
    angles = DeepseekV32RotaryEmbedding(made)(s.x, torch.arange(LENGTH)[None])
    return inner(s.x, angles, HIDDEN.expand(2, -1, -1, -1))[0]


def fill(module, weights):
    """Weights, of each the first rows and columns."""
    state = module.state_dict()
    for name, weight in weights.items():
        state[name] = weight[tuple(map(slice, state[name].shape))]
    module.load_state_dict(state)


def hashed(s):
    made = ReformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_head_size=HEAD_DIM,
        lsh_attn_chunk_length=law.CHUNK,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=1,
        num_buckets=law.BUCKETS,
        is_decoder=True,
        hash_seed=law.HASH_SEED,
    )
    inner = LSHSelfAttention(made, 0).eval()
    fill(inner, {"query_key.weight": s.weights["q"], "value.weight": s.weights["v"]})
    return inner


@note("the layer of the Reformer")
def lsh(s):
    return hashed(s)(s.x).hidden_states


@note("the Reformer's tiles are cut through all buckets")
def lsh_causal(s):
    inner, changed = hashed(s), 0.0
    for length in range(1, LENGTH):
        later = torch.cat([s.x[:, :length], s.x[:, length:].flip(0) * 2], 1)
        apart = inner(s.x).hidden_states[:, :length] - inner(later).hidden_states[:, :length]
        changed = max(changed, float(apart.abs().max()))
    if changed:
        raise Wrong(f"the Reformer's tiles are cut through all buckets: earlier tokens change by {changed:.1g}")
    return ()


@note("the layer of JetMoe")
def mixture_of_attention(s):
    made = JetMoeConfig(
        hidden_size=WIDTH,
        num_key_value_heads=2,
        kv_channels=8,
        num_experts_per_tok=law.CHOSEN,
        num_local_experts=law.EXPERTS,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    inner = JetMoeAttention(made, 0).eval()
    weights = {
        "experts.input_linear.weight": law.taken(s, 2, law.EXPERTS, 16, WIDTH),
        "experts.output_linear.weight": law.taken(s, 4, law.EXPERTS, WIDTH, 16),
        "experts.router.layer.weight": s.spare[0],
        "experts.bias": s.spare[1, 0],
        "kv_proj.weight": torch.cat([s.weights["k"][:16], s.weights["v"][:16]]),
    }
    fill(inner, weights)
    unturned = (torch.ones(1, LENGTH, 8), torch.zeros(1, LENGTH, 8))
    return inner(s.x, HIDDEN, unturned)[0]


@note("`load_balancing_loss_func`, for models that return their routers' logits")
def load_loss(s):
    logits = (s.x @ s.spare[0, : law.EXPERTS].T).flatten(0, 1)
    return load_balancing_loss_func((logits,), law.EXPERTS, law.CHOSEN)


@note("the resampler of Idefics")
def resampler(s):
    made = IdeficsConfig()
    made.vision_config.embed_dim = WIDTH
    made.perceiver_config.qk_layer_norms_perceiver = False
    inner = IdeficsPerceiverResampler(made, WIDTH, 1, HEADS, HEAD_DIM, law.LATENTS).eval()
    weights = {f"blocks.0.0.{name}_proj.weight": s.weights[name] for name in "qkv"}
    weights |= {
        "blocks.0.0.output_proj.weight": s.weights["out"],
        "latents": s.spare[0],
        "blocks.0.1.fc.weight": law.taken(s, 0, 4 * WIDTH, WIDTH),
        "blocks.0.1.c_proj.weight": law.taken(s, 4, WIDTH, 4 * WIDTH),
    }
    fill(inner, weights)
    return inner(s.x)


NO = {
    "retention": "not compared: MiniMax's layer has it, with SiLU, a norm and a gate",
    "gated_cross": "not compared: Idefics' and Mllama's layers have it, with other norms",
    "block": "each model has blocks of its own kind",
}
