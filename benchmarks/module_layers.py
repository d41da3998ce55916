"""The contenders of `module.py`: one layer each, with the same weights, and how it is called.

Every layer is self-attention of width 512, 8 heads of 64, with its four projections without biases (BERT's has some, of
0); nothing around it (no residual, no norm, no dropout). Each peer is called the fastest way it has: without weights,
through torch's fused attention. Parameters require gradients in inference too: where they do not, torch multiplies the
inputs of `nn.MultiheadAttention` without biases by copies of its weights.
"""

import torch
from torch import nn

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 512, 8, 2, 64
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")

CASES = {
    "self": ("ours", "ours fused", "nn.MultiheadAttention", "BERT", "x-transformers"),
    "causal": ("ours", "ours fused", "nn.MultiheadAttention", "x-transformers"),
    "llama": ("ours", "Llama"),
    "mixed": ("ours", "equal heads"),
}
"""What runs in each. In "mixed" two heads of 128 and four of 64 stand against eight of 64."""

FUSED = ("nn.MultiheadAttention", "BERT", "Llama", "x-transformers", "equal heads")
"""Peers that use torch's fused attention."""


class Layers:
    """Builds the layers of one case, all with the same random weights.

    Args:
        case: Its name.
        dtype: Of weights and input.
        length: Tokens.
    """

    def __init__(self, case, dtype, length):
        generator = torch.Generator().manual_seed(0)
        kv_width = (KV_HEADS if case == "llama" else HEADS) * HEAD_DIM
        rows = {"q_proj": WIDTH, "k_proj": kv_width, "v_proj": kv_width, "out_proj": WIDTH}
        self.weights = {
            name: (torch.randn(rows[name], WIDTH, generator=generator) * WIDTH**-0.5).to(dtype) for name in NAMES
        }
        self.case, self.dtype, self.length = case, dtype, length
        self.causal = case in ("causal", "llama")

    def build(self, name):
        """(layer, function of the input)."""
        layer, call = getattr(self, BUILDERS[name])(name)
        return layer.to(self.dtype), call

    def ours(self, name):
        import multihead as mh

        heads = mh.HeadGroup(HEADS, HEAD_DIM, kv_heads=KV_HEADS if self.case == "llama" else None)
        if self.case == "llama":
            heads = mh.HeadGroup(HEADS, HEAD_DIM, kv_heads=KV_HEADS, position=mh.Rotary())
        if self.case == "mixed" and name == "ours":
            heads = [mh.HeadGroup(2, 128), mh.HeadGroup(4, 64)]
        layer = mh.MultiHeadAttention(WIDTH, heads, bias=False)
        layer.load_state_dict({f"{key}.weight": weight for key, weight in self.weights.items()})
        layer = layer.fuse() if name == "ours fused" else layer
        mask = mh.causal() if self.causal else None
        return layer, lambda x: layer(x, mask=mask)

    def torch_layer(self, name):
        layer = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
        with torch.no_grad():
            layer.in_proj_weight.copy_(torch.cat([self.weights[key] for key in NAMES[:3]]))
            layer.out_proj.weight.copy_(self.weights["out_proj"])
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(self.length, dtype=self.dtype)
        return layer, lambda x: layer(x, x, x, need_weights=False, attn_mask=mask, is_causal=self.causal)[0]

    def bert(self, name):
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertSelfAttention

        config = BertConfig(hidden_size=WIDTH, num_attention_heads=HEADS, attention_probs_dropout_prob=0.0)
        config._attn_implementation = "sdpa"
        inner, dense = BertSelfAttention(config), nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            for linear, key in zip((inner.query, inner.key, inner.value, dense), NAMES, strict=True):
                linear.weight.copy_(self.weights[key])
                linear.bias.zero_()
        return nn.ModuleList([inner, dense]), lambda x: dense(inner(x)[0])

    def llama(self, name):
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

        config = LlamaConfig(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=self.length,
        )
        config._attn_implementation = "sdpa"
        layer, rotary = LlamaAttention(config, 0), LlamaRotaryEmbedding(config)
        with torch.no_grad():
            for linear, key in zip((layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj), NAMES, strict=True):
                linear.weight.copy_(self.weights[key])
        positions = torch.arange(self.length)[None]
        # A model makes the angles once for all its layers; ours makes them in the layer.
        return layer, lambda x: layer(x, position_embeddings=rotary(x, positions), attention_mask=None)[0]

    def x_transformers(self, name):
        from x_transformers.x_transformers import Attention

        layer = Attention(WIDTH, dim_head=HEAD_DIM, heads=HEADS, causal=self.causal, flash=True)
        with torch.no_grad():
            for linear, key in zip((layer.to_q, layer.to_k, layer.to_v, layer.to_out), NAMES, strict=True):
                linear.weight.copy_(self.weights[key])
        return layer, layer


BUILDERS = {
    "ours": "ours",
    "ours fused": "ours",
    "equal heads": "ours",
    "nn.MultiheadAttention": "torch_layer",
    "BERT": "bert",
    "Llama": "llama",
    "x-transformers": "x_transformers",
}
