# ruff: noqa: D102, D103 - a row's title says what its cell does
"""transformers: its attention functions and masks, its caches, and the attention layers of its models."""

from types import SimpleNamespace

import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from transformers.models.t5.modeling_t5 import T5Attention

from cells import transformers_families
from cells.law import CAUSAL, HEAD_DIM, HEADS, LENGTH, WIDTH, by_hand, gradient, leaf, note, split
from cells.law_families import CHOICE, blocks_chosen, choice, keys_chosen

PACKAGE = "transformers"
MORE = transformers_families


def config(kernel="sdpa", kind=LlamaConfig, **given):
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": 1}
    made = kind(**(sizes | given))
    made._attn_implementation = kernel
    return made


def run(s, q=None, k=None, v=None, *, mask=None, groups=1, causal=False, **given):
    """The heads, by the function that its models call under sdpa."""
    stub = SimpleNamespace(num_key_value_groups=groups, is_causal=causal, training=False)
    q, k, v = (a if b is None else b for a, b in ((s.q, q), (s.k, k), (s.v, v)))
    return sdpa_attention_forward(stub, q, k, v, mask, is_causal=causal, **given)[0].transpose(1, 2)


def masked(s, make=create_causal_mask, kernel="sdpa", keep=None, positions=None, **given):
    """The mask that its models make."""
    made = config(kernel, **given)
    return make(made, s.x, keep, None, position_ids=positions)


def causal(s):
    return run(s, mask=masked(s), causal=True)


def boolean_mask(s):
    return run(s, mask=s.mask)


@by_hand(CHOICE)
def top_keys(s):
    return boolean_mask(choice(s, keys_chosen))


@by_hand(CHOICE)
def top_blocks(s):
    return boolean_mask(choice(s, blocks_chosen))


def padding_causal(s):
    return run(s, mask=masked(s, keep=s.keep.long()))


def empty_row(s):
    allowed = torch.ones(1, 1, LENGTH, LENGTH).bool()
    allowed[:, :, 2] = False
    q, k, v = map(leaf, (s.q, s.k, s.v))
    value = run(s, q, k, v, mask=allowed)
    return value.detach(), *torch.autograd.grad((value * value).sum(), (q, k, v))


@note("from the cache that holds the earlier tokens")
def later_queries(s):
    kept = DynamicCache(config=config())
    kept.update(s.k[:, :, :5], s.v[:, :, :5], 0)
    mask = create_causal_mask(config(), s.x[:, 5:], None, kept)
    k, v = kept.update(s.k[:, :, 5:], s.v[:, :, 5:], 0)
    return run(s, s.q[:, :, 5:], k, v, mask=mask)


@note("a mask of every pair under sdpa")
def window(s):
    from transformers import MistralConfig

    made = config(kind=MistralConfig, sliding_window=3)
    return run(s, mask=create_sliding_window_causal_mask(made, s.x, None, None))


@note("found where `position_ids` go back; a mask of every pair under sdpa")
def documents(s):
    first = s.documents[:, 1:] != s.documents[:, :-1]
    places = torch.arange(LENGTH).expand(2, -1)
    starts = torch.where(torch.cat([torch.ones(2, 1).bool(), first], 1), places, 0).cummax(1).values
    return run(s, mask=masked(s, positions=places - starts))


@by_hand("a mask of every pair; Longformer's own module has it for whole models")
def longformer(s):
    allowed = torch.ones(LENGTH, LENGTH).bool().triu(-2).tril(2)
    allowed[0], allowed[:, 0] = True, True
    return run(s, mask=allowed[None, None])


@note("`position_bias`, scores of every pair")
def bias_gradient(s):
    bias = leaf(s.bias)
    value = run(s, position_bias=bias)
    return value.detach(), gradient(value, bias)


@note("Gemma 2's plain function; refused under sdpa")
def softcap(s):
    stub = SimpleNamespace(num_key_value_groups=1, head_dim=HEAD_DIM, training=False)
    mask = masked(s, kernel="eager")
    found = modeling_gemma2.eager_attention_forward(stub, s.q, s.k, s.v, mask, softcap=1.5)
    return found[0].transpose(1, 2)


def with_sinks(s, sinks):
    stub = SimpleNamespace(num_key_value_groups=1, sinks=sinks, training=False)
    mask = masked(s, kernel="eager")
    found = modeling_gpt_oss.eager_attention_forward(stub, s.q, s.k, s.v, mask, scaling=HEAD_DIM**-0.5)
    return found[0].transpose(1, 2)


@note("GPT-OSS's plain function")
def sinks(s):
    return with_sinks(s, s.sinks)


@by_hand("GPT-OSS's sinks, held at 0")
def off_by_one(s):
    return with_sinks(s, torch.zeros(HEADS))


def grouped(s):
    return run(s, k=s.few_k, v=s.few_v, groups=2, mask=masked(s), causal=True)


def value_width(s):
    return run(s, v=s.wide_v)


def filled(made, s):
    names = (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "out"))
    with torch.no_grad():
        for theirs, name in names:
            weight = getattr(made, theirs).weight
            weight.copy_(s.weights[name][: weight.shape[0], : weight.shape[1]])
    return made.eval()


def unturned(x):
    """The angles of a layer without positions."""
    shape = (x.shape[0], x.shape[1], HEAD_DIM)
    return torch.ones(shape), torch.zeros(shape)


def free_head_dim(s):
    from transformers import Qwen3Config

    # Llama's own configuration refuses a width that heads do not divide; its layer is the same without the norms.
    sizes = {"hidden_size": 20, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}
    made = filled(LlamaAttention(config(kind=Qwen3Config, **sizes), 0), s)
    return made(s.x[..., :20], position_embeddings=unturned(s.x), attention_mask=None, is_causal=False)[0]


@note("the layers of Qwen 3, Gemma 3, OLMo 2 and others")
def qk_norm(s):
    from transformers import Qwen3Config

    made = filled(Qwen3Attention(config(kind=Qwen3Config, head_dim=HEAD_DIM), 0), s)
    with torch.no_grad():
        made.q_norm.weight.copy_(s.norms[0])
        made.k_norm.weight.copy_(s.norms[1])
    return made(s.x, position_embeddings=unturned(s.x), attention_mask=None)[0]


@note("DeepSeek's layers and others")
def latent(s):
    from transformers import DeepseekV3Config

    made = config(
        kind=DeepseekV3Config,
        q_lora_rank=None,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        rope_interleave=True,
    )
    inner = DeepseekV3Attention(made, 0).eval()
    with torch.no_grad():
        inner.q_proj.weight.copy_(s.weights["q"])
        inner.kv_a_proj_with_mqa.weight.copy_(s.weights["k"][:12])
        inner.kv_a_layernorm.weight.copy_(s.norms[0])
        inner.kv_b_proj.weight.copy_(torch.cat([s.weights["v"], s.weights["k"][12:28]])[:, :8])
        inner.o_proj.weight.copy_(s.weights["out"])
    angles = DeepseekV3RotaryEmbedding(made)(s.x, torch.arange(LENGTH)[None])
    return inner(s.x, angles, None)[0]


def turned(s, parameters=None):
    given = {} if parameters is None else {"rope_parameters": parameters}
    made = config(max_position_embeddings=512, **given)
    angles = LlamaRotaryEmbedding(made)(s.x, torch.arange(LENGTH)[None])
    return filled(LlamaAttention(made, 0), s)(s.x, position_embeddings=angles, attention_mask=None)[0]


def rotary(s):
    return turned(s)


def rotary_llama3(s):
    asked = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return turned(s, asked | {"rope_theta": 10000.0, "original_max_position_embeddings": 64})


def rotary_yarn(s):
    asked = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    return turned(s, asked)


@note("`build_alibi_tensor` of Bloom, scores of every pair")
def alibi(s):
    bias = build_alibi_tensor(torch.ones(2, LENGTH), HEADS, torch.float32).view(2, HEADS, 1, LENGTH)
    return run(s, mask=CAUSAL[None, None], position_bias=bias)


@note("T5's layer; the table is its first layer's")
def distance_table(s):
    from transformers import T5Config

    made = T5Config(d_model=WIDTH, d_kv=HEAD_DIM, num_heads=HEADS, relative_attention_num_buckets=8, is_decoder=True)
    made.relative_attention_max_distance = 8
    made._attn_implementation = "sdpa"
    inner = T5Attention(made, has_relative_attention_bias=True, layer_idx=0).eval()
    with torch.no_grad():
        inner.relative_attention_bias.weight.copy_(s.table)
    value = run(s, mask=CAUSAL[None, None], position_bias=inner.compute_bias(LENGTH, LENGTH))
    return value.detach(), gradient(value, inner.relative_attention_bias.weight)


def in_parts(s, sizes, kept, make=create_causal_mask, **given):
    """Llama's layer part by part, without positions."""
    made = config(**given)
    inner, found = filled(LlamaAttention(config(), 0), s), []
    with torch.no_grad():
        for part in s.x.split(sizes, 1):
            mask = make(made, part, None, kept)
            found.append(inner(part, position_embeddings=unturned(part), attention_mask=mask, cache=kept)[0])
    return torch.cat(found, 1)


def cache(s):
    return in_parts(s, 1, DynamicCache(config=config()))


def cache_chunks(s):
    return in_parts(s, [3, 1, 4], DynamicCache(config=config()))


def cache_static(s):
    return in_parts(s, [1, 3, 4], StaticCache(config=config(), max_cache_len=LENGTH))


def cache_sliding(s):
    from transformers import MistralConfig

    given = {"kind": MistralConfig, "sliding_window": 3}
    kept = DynamicCache(config=config(**given))
    return in_parts(s, 1, kept, create_sliding_window_causal_mask, **given)


@note("`cache.crop(-3)`")
def rollback(s):
    made, kept = config(), DynamicCache(config=config())
    inner, found = filled(LlamaAttention(made, 0), s), []
    with torch.no_grad():
        for part in (s.x[:, :5], torch.randn(2, 3, WIDTH), s.x[:, 5:]):
            if len(found) == 2:
                kept.crop(-3)
            mask = create_causal_mask(made, part, None, kept)
            found.append(inner(part, position_embeddings=unturned(part), attention_mask=mask, cache=kept)[0])
    return torch.cat([found[0], found[2]], 1)


def beams(s):
    kept = DynamicCache(config=config())
    kept.update(s.k[:, :, :6], s.v[:, :, :6], 0)
    kept.reorder_cache(torch.tensor([1, 1]))
    mask = create_causal_mask(config(), s.x[:, 6:], None, kept)
    k, v = kept.update(s.k[:, :, 6:], s.v[:, :, 6:], 0)
    return run(s, s.q[:, :, 6:], k, v, mask=mask)


@note("its plain function, with a matrix of every pair; under sdpa there are none")
def weights(s):
    stub = SimpleNamespace(num_key_value_groups=1, head_dim=HEAD_DIM, training=False)
    return modeling_gemma2.eager_attention_forward(stub, s.q, s.k, s.v, masked(s, kernel="eager"))[1]


def clean_weights(s):
    stub = SimpleNamespace(num_key_value_groups=1, head_dim=HEAD_DIM, training=True)
    return modeling_gemma2.eager_attention_forward(stub, s.q, s.k, s.v, None, dropout=0.5)[1].sum(-1)


@by_hand("columns of the output projection set to 0; `head_mask` and `prune_heads` were removed")
def ablate(s):
    made = filled(LlamaAttention(config(), 0), s)
    with torch.no_grad():
        made.o_proj.weight[:, 8:16] = 0
    return made(s.x, position_embeddings=unturned(s.x), attention_mask=None, is_causal=False)[0]


@note("under eager")
def double_backward(s):
    q = leaf(s.q)
    stub = SimpleNamespace(num_key_value_groups=1, head_dim=HEAD_DIM, training=True)
    value = modeling_gemma2.eager_attention_forward(stub, q, s.k, s.v, None)[0].transpose(1, 2)
    (first,) = torch.autograd.grad((value * value).sum(), q, create_graph=True)
    return torch.autograd.grad((first * first).sum(), q)[0]


def eval_dropout(s):
    made = LlamaAttention(config(attention_dropout=0.5), 0).eval()
    with torch.no_grad():
        for linear in (made.q_proj, made.k_proj, made.v_proj, made.o_proj):
            linear.weight.copy_(torch.eye(WIDTH))
    flat = [x.transpose(1, 2).flatten(2) for x in (s.q, s.k, s.v)]
    for linear, x in zip((made.q_proj, made.k_proj, made.v_proj), flat, strict=True):
        linear.register_forward_hook(lambda module, given, got, x=x: x)
    return split(made(s.x, position_embeddings=unturned(s.x), attention_mask=None, is_causal=False)[0])


def compile(s):
    torch.compiler.reset()
    inner = LlamaAttention(config(), 0).eval()

    def call(q, k, v):
        return sdpa_attention_forward(inner, q, k, v, None, is_causal=True)[0].transpose(1, 2)

    made = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 6, 7, 8):
        result = made(*(x[:, :, :length] for x in (s.q, s.k, s.v)))
    torch.compiler.reset()
    return result


class Whole(nn.Module):
    """Llama's layer without positions."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, position_embeddings=unturned(x), attention_mask=None)[0]


def onnx(s):
    from cells.exporting import exported

    return exported(Whole(filled(LlamaAttention(config(), 0), s)).eval(), s.x)


def from_transformers(s):
    return turned(s)


NO = transformers_families.NO | {
    "output_gate": "not compared: Qwen3-Next's layer has a gate for each number, from its query projection",
    "differential": "not compared: DiffLlama's layer has it",
    "cache_int8": "not compared: through optimum-quanto or HQQ",
    "lse": "not compared: through FlexAttention",
    "explain": "the kernel is chosen by name",
    "prune": "`prune_heads` was removed",
    "head_gate": "`head_mask` was removed",
}
