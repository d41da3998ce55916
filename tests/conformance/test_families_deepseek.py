"""DeepSeek-V3.2's attention in transformers, and fla's plain reference, on random weights."""

import importlib.util
import pathlib
import site

import pytest
import torch
from transformers.cache_utils import DynamicCache
from transformers.models.deepseek_v32.configuration_deepseek_v32 import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention, DeepseekV32RotaryEmbedding

from multihead.attend import attention
from multihead.attend.selector.indexer import Indexer
from multihead.layer import Latent
from multihead.layer.indexed import Index, IndexedAttention
from multihead.pattern import causal
from multihead.position import Rotary

NAMES = {
    "q_a_proj": "q_down",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "q_up",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "kv_up",
    "o_proj": "out_proj",
    "indexer.wq_b": "index_q",
    "indexer.wk": "index_k",
    "indexer.k_norm": "index_norm",
    "indexer.weights_proj": "index_weights",
}


def pair(budget):
    config = DeepseekV32Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=12,
        kv_lora_rank=10,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        index_n_heads=8,
        index_head_dim=16,
        index_topk=budget,
        attention_bias=True,
        attn_implementation="eager",
        max_position_embeddings=128,
    )
    theirs = DeepseekV32Attention(config, 0).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(
                torch.randn(parameter.shape) * (1.0 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5)
            )
    latent = Latent(10, nope_dim=8, rope_dim=4, v_dim=6, q_rank=12)
    position = Rotary(layout="interleaved")
    ours = IndexedAttention(32, 4, latent, Index(budget, heads=8, head_dim=16), position=position, bias=True).eval()
    state = {}
    for name, value in theirs.state_dict().items():
        module, _, kind = name.rpartition(".")
        state[f"{NAMES[module]}.{kind}"] = value
    ours.load_state_dict(state)
    return ours, theirs, DeepseekV32RotaryEmbedding(config)


@pytest.mark.parametrize("budget", [5, 70])
def test_deepseek_v32(budget):
    ours, theirs, rotary = pair(budget)
    x, places = torch.randn(2, 70, 32), torch.arange(70)[None]
    with torch.no_grad():
        seen = causal().mask(70, 70).expand(2, 1, 70, 70)
        told = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        want, _ = theirs(x, rotary(x, places), told)
        got = ours(x, mask=causal())
    # Products are summed in another order: where two keys score alike to the last bits, the other one may be chosen.
    apart = (got - want).abs().amax(-1) > 1e-5 * float(want.abs().max())
    assert apart.sum() <= (1 if budget == 5 else 0)


def test_deepseek_v32_step_by_step():
    ours, theirs, rotary = pair(4)
    x, cache, kept = torch.randn(1, 20, 32), ours.cache(batch=1), DynamicCache(config=theirs.config)
    apart = 0
    with torch.no_grad():
        for t in range(20):
            here = x[:, t : t + 1]
            told = torch.zeros(1, 1, 1, t + 1)
            want, _ = theirs(here, rotary(here, torch.tensor([[t]])), told, cache=kept)
            got = ours(here, mask=causal(), cache=cache)
            apart += int((got - want).abs().max() > 1e-5 * float(want.abs().max()))
    assert apart <= 1


@pytest.fixture(scope="module")
def fla():
    """fla's reference, loaded by its file: the package itself needs triton."""
    found = [pathlib.Path(folder) / "fla/ops/dsa/naive.py" for folder in site.getsitepackages()]
    (path,) = [one for one in found if one.exists()]
    spec = importlib.util.spec_from_file_location("fla_dsa_naive", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("budget", [3, 40])
def test_fla(fla, budget):
    q, k, v = torch.randn(2, 40, 4, 8), torch.randn(2, 40, 2, 8), torch.randn(2, 40, 2, 6)
    index_q, index_k, weights = torch.randn(2, 40, 8, 5), torch.randn(2, 40, 5), torch.randn(2, 40, 8)
    want = fla.naive_dsa(q, k, v, index_q, index_k, weights, topk=budget)
    chosen = Indexer(budget, weights=weights.transpose(1, 2)).select(
        index_q.transpose(1, 2), index_k[:, None], mask=causal()
    )
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    got = attention(*heads, mask=causal() & chosen).transpose(1, 2)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    if budget == 40:
        torch.testing.assert_close(got, attention(*heads, mask=causal()).transpose(1, 2), rtol=1e-6, atol=1e-6)
