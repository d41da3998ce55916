import copy

import pytest
import torch
from torch import nn
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from multihead.error import MultiheadError
from multihead.layer import (
    FAMILIES,
    Block,
    BlockNorm,
    FeedForward,
    HeadGroup,
    LatentAttention,
    LongformerAttention,
    MultiHeadAttention,
)
from multihead.pattern import causal, padding
from multihead.position import Rotary

WIDE = torch.float64
CAN_CROSS = [name for name, row in FAMILIES.items() if row.support.cross]


def given(*shape):
    return torch.randn(*shape, dtype=WIDE)


def copied(block, theirs, pairs):
    """Norms and maps of theirs in our block."""
    for ours, their in pairs.items():
        block.get_submodule(ours).load_state_dict(theirs.get_submodule(their).state_dict())
    return block.double()


def torch_pair(randomise, kind, place, activation, **own):
    """A layer of torch, and our block with its weights."""
    made = kind(16, 4, 24, dropout=0.0, activation=activation, batch_first=True, norm_first=place == "pre")
    theirs = randomise(made).double()
    cross = "cross" if hasattr(theirs, "multihead_attn") else None
    block = Block(
        16,
        MultiHeadAttention.from_torch(theirs.self_attn),
        cross=cross and MultiHeadAttention.from_torch(theirs.multihead_attn),
        feed_forward=FeedForward(24, activation),
        norm=BlockNorm(place),
        **own,
    )
    norms = ["attention_norm", *(["cross_norm"] if cross else []), "feed_forward_norm"]
    pairs = {name: f"norm{i + 1}" for i, name in enumerate(norms)}
    return theirs, copied(block, theirs, pairs | {"feed_forward.up": "linear1", "feed_forward.down": "linear2"})


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_of_torch(randomise, place, activation):
    theirs, block = torch_pair(randomise, nn.TransformerEncoderLayer, place, activation)
    x, keep = given(2, 7, 16), torch.arange(7) < torch.tensor([[7], [4]])
    torch.testing.assert_close(block(x), theirs(x))
    expected = theirs(x, src_key_padding_mask=~keep)
    torch.testing.assert_close(block(x, mask=padding(keep))[keep], expected[keep])


@pytest.mark.parametrize("place", ["pre", "post"])
def test_a_decoder_layer_of_torch_whole_and_step_by_step(randomise, place):
    theirs, block = torch_pair(randomise, nn.TransformerDecoderLayer, place, "relu")
    x, memory, keep = given(2, 7, 16), given(2, 5, 16), torch.arange(5) < torch.tensor([[5], [2]])
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected = theirs(x, memory, tgt_mask=future, memory_key_padding_mask=~keep)
    torch.testing.assert_close(block(x, memory, mask=causal(), memory_mask=padding(keep)), expected)
    for cache, again in ((block.cache(batch=2, memory=memory), ()), (block.cache(batch=2), (memory,))):
        told = {"mask": causal(), "memory_mask": padding(keep), "cache": cache}
        torch.testing.assert_close(torch.cat([block(p, *again, **told) for p in x.split([3, 1, 3], 1)], 1), expected)


def test_the_block_of_llama(randomise):
    sizes = {"hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, attn_implementation="eager", rms_norm_eps=1e-4)
    theirs = randomise(LlamaDecoderLayer(config, 0)).double()
    heads = HeadGroup(4, kv_heads=2, position=Rotary(base=config.rope_parameters["rope_theta"]))
    block = Block(
        16,
        MultiHeadAttention(16, heads, bias=False),
        feed_forward=FeedForward(20, "swiglu", bias=False),
        norm=BlockNorm(kind="rms", eps=1e-4),
    )
    pairs = {f"attention.{name}_proj": f"self_attn.{name}_proj" for name in "qkv"}
    pairs |= {"attention.out_proj": "self_attn.o_proj"} | {
        f"feed_forward.{name}": f"mlp.{name}_proj" for name in ("up", "gate", "down")
    }
    pairs |= {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
    copied(block, theirs, pairs)
    x = given(2, 7, 16)
    angles = LlamaRotaryEmbedding(config)(x, torch.arange(7)[None])
    hidden = torch.full((7, 7), float("-inf"), dtype=WIDE).triu(1)[None, None]
    expected = theirs(x, attention_mask=hidden, position_embeddings=angles)
    expected = expected[0] if isinstance(expected, tuple) else expected
    # Its angles are float32.
    torch.testing.assert_close(block(x, mask=causal()), expected, rtol=1e-5, atol=1e-5)
    moved = torch.arange(3, 10)
    angles = LlamaRotaryEmbedding(config)(x, moved[None])
    expected = theirs(x, attention_mask=hidden, position_embeddings=angles)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(block(x, mask=causal(), positions=moved), expected, rtol=1e-5, atol=1e-5)


def test_the_block_of_gpt2(randomise):
    config = GPT2Config(n_embd=16, n_head=4, n_inner=24, resid_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager")
    theirs = randomise(GPT2Block(config, 0)).double().eval()
    block = Block(16, heads=4, feed_forward=FeedForward(24, "gelu_tanh")).double()
    block.attention_norm.load_state_dict(theirs.ln_1.state_dict())
    block.feed_forward_norm.load_state_dict(theirs.ln_2.state_dict())
    # Its maps are transposed, and three of them are one.
    q, k, v = theirs.attn.c_attn.weight.T.chunk(3)
    names = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
    maps = dict(zip(names, zip((q, k, v), theirs.attn.c_attn.bias.chunk(3), strict=True), strict=True))
    for ours, their in (
        ("attention.out_proj", theirs.attn.c_proj),
        ("feed_forward.up", theirs.mlp.c_fc),
        ("feed_forward.down", theirs.mlp.c_proj),
    ):
        maps[ours] = (their.weight.T, their.bias)
    for name, (weight, bias) in maps.items():
        block.get_submodule(name).load_state_dict({"weight": weight, "bias": bias})
    x = given(2, 7, 16)
    hidden = torch.full((7, 7), float("-inf"), dtype=WIDE).triu(1)[None, None]
    expected = theirs(x, attention_mask=hidden)
    torch.testing.assert_close(
        block(x, mask=causal()), expected[0] if isinstance(expected, tuple) else expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("place", ["pre", "post"])
def test_parts_are_added_one_by_one(randomise, place):
    block = randomise(Block(16, heads=4, cross="multi_head", norm=BlockNorm(place, kind="rms"))).double()
    x, memory = given(2, 5, 16), given(2, 3, 16)
    parts = [
        (block.attention_norm, lambda y: block.attention(y, mask=causal())),
        (block.cross_norm, lambda y: block.cross(y, memory)),
        (block.feed_forward_norm, block.feed_forward),
    ]
    expected = x
    for norm, part in parts:
        expected = expected + part(norm(expected)) if place == "pre" else norm(expected + part(expected))
    torch.testing.assert_close(block(x, memory, mask=causal()), expected)


def test_a_block_without_feed_forward_and_with_another_module():
    x = given(2, 5, 16)
    alone = Block(16, heads=4, feed_forward=None).double()
    torch.testing.assert_close(alone(x), x + alone.attention(alone.attention_norm(x)))
    assert sorted({name.split(".")[0] for name in alone.state_dict()}) == ["attention", "attention_norm"]
    other = Block(16, heads=4, feed_forward=nn.Tanh()).double()
    other.attention.load_state_dict(alone.attention.state_dict())
    torch.testing.assert_close(other(x), alone(x) + torch.tanh(other.feed_forward_norm(alone(x))))


def test_any_module_is_taken():
    class Mean(nn.Module):
        def forward(self, x, mask=None):
            return x.mean(1, keepdim=True).expand_as(x)

    block, x = Block(16, Mean(), feed_forward=None).double(), given(2, 5, 16)
    torch.testing.assert_close(block(x), x + block.attention_norm(x).mean(1, keepdim=True))
    with pytest.raises(MultiheadError, match="a block of Mean, which has none"):
        block.cache(batch=2)


def test_dropout_drops_what_a_part_gives_in_training_alone():
    block, x = Block(16, heads=4, dropout=0.5, feed_forward=None).double(), given(2, 5, 16)
    part = block.attention(block.attention_norm(x))
    got = block(x) - x
    dropped = got.abs() < 1e-12
    assert 0 < int(dropped.sum()) < got.numel()
    torch.testing.assert_close(got[~dropped], 2 * part[~dropped])
    torch.testing.assert_close(block.eval()(x), x + part)


@pytest.mark.parametrize("name", CAN_CROSS)
def test_cross_attention_of_every_kind_that_can(randomise, name):
    block = randomise(Block(16, heads=4, cross=name)).double()
    x, memory = given(2, 5, 16), given(2, 3, 16).requires_grad_()
    out = block(x, memory, mask=causal())
    out.sum().backward()
    assert memory.grad.abs().sum() > 0
    cache = block.cache(batch=2, memory=memory)
    parts = [block(part, mask=causal(), cache=cache) for part in x.split([2, 1, 2], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), out)


def test_a_cache_is_cut_reordered_and_counted(randomise):
    block = randomise(Block(16, heads=4, cross="multi_head")).double()
    plain = randomise(Block(16, heads=4, cross="talking_heads")).double()
    x, memory = given(3, 6, 16), given(3, 4, 16)
    for each in (block, plain):
        whole = each(x, memory, mask=causal())
        cache = each.cache(batch=3, memory=memory)
        each(x, mask=causal(), cache=cache)
        assert cache.length == 6
        assert cache.nbytes >= 2 * 3 * 6 * 16 * 8 + memory.nbytes
        cache.cut(4)
        cache.select([2, 0])
        assert (cache.length, cache.batch) == (4, 2)
        torch.testing.assert_close(each(x[[2, 0], 4:], mask=causal(), cache=cache), whole[[2, 0], 4:])


def test_a_call_that_fails_leaves_the_cache_as_it_was(randomise):
    block = randomise(Block(16, heads=4, cross="multi_head")).double()
    x, memory = given(2, 5, 16), given(2, 4, 16)
    cache = block.cache(batch=2, memory=memory)
    block(x[:, :3], mask=causal(), cache=cache)
    with pytest.raises(MultiheadError):
        block(x[:, 3:], mask=causal(), memory_mask=torch.ones(1, 9, dtype=torch.bool), cache=cache)
    assert cache.length == 3
    torch.testing.assert_close(block(x[:, 3:], mask=causal(), cache=cache), block(x, memory, mask=causal())[:, 3:])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Block(16, "multi_hed"), "perhaps 'multi_head'"),
        (lambda: Block(16, "xyzzy"), "pass one of these names, or a module"),
        (lambda: Block(16, heads=5), "heads that divide embed_dim evenly"),
        (lambda: Block(0), "embed_dim=0"),
        (lambda: Block(16, heads=0), "heads=0"),
        (lambda: Block(16, heads=4, dropout=1.0), "0 <= p < 1"),
        (lambda: Block(16, MultiHeadAttention(32)), "MultiHeadAttention with embed_dim=32"),
        (lambda: Block(16, heads=4, cross="latent"), "latent, which looks at its own input alone"),
        (lambda: Block(16, heads=4, cross=LongformerAttention(16, 4, window=4)), "take one of multi_head"),
        (lambda: BlockNorm("before"), "'pre', 'post'"),
        (lambda: BlockNorm(kind="batch"), "'layer', 'rms'"),
        (lambda: BlockNorm(eps=0.0), "eps above 0"),
        (lambda: FeedForward(0), "hidden=0"),
        (lambda: FeedForward(8, "tanh"), "swiglu"),
        (lambda: FeedForward(8, dropout=1.5), "0 <= p < 1"),
        (lambda: Block(16, "longformer", heads=4).cache(batch=1), "which has none"),
        (lambda: Block(16, heads=4).cache(batch=0), "batch=0"),
        (lambda: Block(16, heads=4).cache(batch=1, memory=given(1, 3, 16)), "cross='multi_head'"),
        (lambda: Block(16, heads=4, cross="multi_head").cache(batch=2, memory=given(1, 3, 16)), "batch=2"),
    ],
)
def test_what_cannot_be_built_is_refused(unhooked, build, says):
    with pytest.raises(MultiheadError) as fault:
        build()
    assert says in str(fault.value)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Block(16, 3), "attention=3 (int)"),
        (lambda: Block(16, heads=4, cross=True), "cross=True (bool)"),
        (lambda: Block(16, heads=4, feed_forward=64), "feed_forward=64"),
        (lambda: Block(16, heads=4, norm="pre"), "norm='pre'"),
        (lambda: BlockNorm(bias=1), "bias=1"),
        (lambda: FeedForward(8, bias=None), "bias=None"),
        (lambda: Block(16, heads=4)([[1.0]]), "x=[[1.0]]"),
        (lambda: Block(16, heads=4)(torch.randn(1, 3, 16), cache=7), "cache=7"),
        (lambda: Block(16, heads=4)(torch.randn(1, 3, 16), 7), "memory=7"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_name(unhooked, build, says):
    with pytest.raises(MultiheadError) as fault:
        build()
    assert says in str(fault.value)


@pytest.mark.parametrize(
    ("build", "call", "says"),
    [
        ({}, lambda b: b(given(3, 16)), "x (3, 16)"),
        ({}, lambda b: b(given(1, 3, 8)), "x (1, 3, 8)"),
        ({}, lambda b: b(given(1, 3, 16), given(1, 2, 16)), "without cross-attention"),
        ({}, lambda b: b(given(1, 3, 16), memory_mask=causal()), "a memory_mask"),
        ({"cross": "multi_head"}, lambda b: b(given(1, 3, 16)), "pass block(x, memory)"),
        ({"cross": "multi_head"}, lambda b: b(given(2, 3, 16), given(1, 2, 16)), "memory (1, 2, 16)"),
        (
            {"cross": "multi_head"},
            lambda b: b(given(1, 3, 16), given(1, 2, 16), cache=b.cache(batch=1, memory=given(1, 2, 16))),
            "and memory besides",
        ),
        (
            {},
            lambda b: b(
                given(1, 3, 16), cache=Block(16, cross="multi_head").cache(batch=1, memory=torch.ones(1, 2, 16))
            ),
            "a cache that remembers another sequence",
        ),
        ({}, lambda b: b(given(2, 3, 16), mask=causal(), cache=b.cache(batch=1)), "batch of 1"),
        ({"attention": "longformer"}, lambda b: b(given(1, 3, 16), positions=torch.arange(3)), "which knows none"),
    ],
)
def test_calls_that_cannot_be_are_refused(build, call, says):
    block = Block(16, **({"heads": 4} | build)).double()
    with pytest.raises(MultiheadError) as fault:
        call(block)
    assert says in str(fault.value)


def test_it_prints_and_copies_and_compiles_no_surprise(randomise):
    block = randomise(Block(16, "grouped_query", heads=4, dropout=0.25, norm=BlockNorm("post", bias=False))).double()
    assert "16, grouped_query, BlockNorm(place='post'" in repr(block)
    assert "dropout=0.25" in repr(block)
    assert not any("norm.bias" in name for name in block.state_dict())
    x, twin = given(1, 4, 16), copy.deepcopy(block.eval())
    assert torch.equal(twin(x), block(x))
    assert block.support.cross is False
    assert isinstance(Block(16, "latent", heads=4).attention, LatentAttention)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"])
def test_a_feed_forward_by_hand(randomise, activation):
    curves = {
        "relu": lambda x: max(x, 0.0 * x),
        "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
        "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
        "silu": lambda x: x / (1 + torch.exp(-x)),
    }
    gated = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}.get(activation)
    for name in filter(None, (activation, gated)):
        block = Block(3, heads=1, feed_forward=FeedForward(5, name)).double()
        layer, x = randomise(block.feed_forward), given(1, 1, 3)
        hidden = []
        for h in range(5):
            up = layer.up.weight[h] @ x[0, 0] + layer.up.bias[h]
            if name == activation:
                hidden.append(curves[activation](up))
            else:
                hidden.append(curves[activation](layer.gate.weight[h] @ x[0, 0] + layer.gate.bias[h]) * up)
        torch.testing.assert_close(layer(x)[0, 0], layer.down.weight @ torch.stack(hidden) + layer.down.bias)


def test_widths_of_a_feed_forward():
    assert FeedForward().width(48) == 192
    assert FeedForward(activation="swiglu").width(48) == 128
    assert FeedForward(7, "swiglu").width(48) == 7
    counts = {
        name: sum(p.numel() for p in Block(48, heads=4, feed_forward=FeedForward(None, name, bias=False)).parameters())
        for name in ("gelu", "swiglu")
    }
    assert counts["gelu"] == counts["swiglu"]


def test_hidden_numbers_are_dropped_in_training_alone():
    layer = Block(4, heads=1, feed_forward=FeedForward(64, "relu", dropout=0.5)).feed_forward
    x = torch.randn(1, 1, 4)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_another_dtype_is_refused_in_words(place, dtype):
    with pytest.raises(MultiheadError, match=f"x of {dtype} on cpu"):
        Block(8, "linear", heads=2, norm=BlockNorm(place))(torch.ones(1, 3, 8, dtype=dtype))
