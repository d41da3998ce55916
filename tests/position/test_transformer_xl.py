"""Transformer-XL's relative positions against loops over pairs, XLNet, and the conformer of wav2vec2."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from multihead.error import MultiheadError
from multihead.position import TransformerXLRelative
from multihead.position.transformer_xl import skew


def made(heads=2, head_dim=4, width=6, layout="interleaved"):
    u, v, w = (
        torch.randn(*shape).double() for shape in ((heads, head_dim), (heads, head_dim), (heads * head_dim, width))
    )
    return TransformerXLRelative(content=u, position=v, projection=w, layout=layout)


def by_pairs(relative, q, kv_len, q_offset, scale):
    """(q_i + v) . W R[i - j], one pair at a time, with the sinusoid written out."""
    heads, head_dim = relative.content.shape
    width = relative.projection.shape[1]
    w = relative.projection.view(heads, head_dim, width)
    out = q.new_zeros(*q.shape[:3], kv_len)
    for i in range(q.shape[2]):
        for j in range(kv_len):
            angles = [(q_offset + i - j) / 10000 ** (2 * k / width) for k in range(width // 2)]
            waves = [f(a) for a in angles for f in (math.sin, math.cos)]
            if relative.layout == "split":
                waves = [*map(math.sin, angles), *map(math.cos, angles)]
            key = w @ torch.tensor(waves, dtype=torch.float64)
            out[:, :, i, j] = scale * ((q[:, :, i] + relative.position) * key).sum(-1)
    return out


@given(
    q_len=st.integers(0, 5),
    kv_len=st.integers(0, 6),
    q_offset=st.integers(-3, 40),
    layout=st.sampled_from(["interleaved", "split"]),
)
def test_scores_by_pairs(q_len, kv_len, q_offset, layout):
    relative, q = made(layout=layout), torch.randn(2, 2, q_len, 4, dtype=torch.float64)
    ours = relative.bias(q, kv_len=kv_len, q_offset=q_offset, scale=0.7)
    assert torch.allclose(ours, by_pairs(relative, q, kv_len, q_offset, 0.7), rtol=0, atol=1e-11)
    if kv_len == q_len:
        assert torch.equal(relative.bias(q), relative.bias(q, kv_len=kv_len, scale=0.5))


@given(q_len=st.integers(0, 5), kv_len=st.integers(0, 5))
def test_skew_moves_each_row(q_len, kv_len):
    dots = torch.randn(2, q_len, q_len + kv_len)
    out = skew(dots)
    assert out.shape == (2, q_len, kv_len)
    for i in range(q_len):
        for j in range(kv_len):
            assert torch.equal(out[:, i, j], dots[:, i, q_len - 1 - i + j])


@given(shift=st.integers(0, 50), split=st.integers(0, 5))
def test_scores_depend_on_distances_alone_and_an_offset_continues(shift, split):
    relative, q = made(), torch.randn(1, 2, 5, 4).double()
    whole = relative.bias(q)
    assert torch.allclose(relative.bias(q, kv_len=5 + shift, q_offset=shift)[..., shift:], whole, rtol=0, atol=1e-12)
    parts = [
        relative.bias(part, kv_len=5, q_offset=at) for part, at in ((q[:, :, :split], 0), (q[:, :, split:], split))
    ]
    assert torch.allclose(torch.cat(parts, 2), whole, rtol=0, atol=1e-12)


def test_the_conformer_of_wav2vec2():
    modeling = pytest.importorskip(
        "transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer", reason="it is the oracle"
    )
    config = modeling.Wav2Vec2ConformerConfig(
        hidden_size=12,
        num_attention_heads=3,
        position_embeddings_type="relative",
        attention_dropout=0.0,
        max_source_positions=9,
    )
    config._attn_implementation = "eager"
    theirs = modeling.Wav2Vec2ConformerSelfAttention(config).double()
    for bias in (theirs.pos_bias_u, theirs.pos_bias_v):
        torch.nn.init.normal_(bias)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    waves = modeling.Wav2Vec2ConformerRelPositionalEmbedding(config)(x).double()
    expected, weights = theirs(x, relative_position_embeddings=waves)
    relative = TransformerXLRelative(
        content=theirs.pos_bias_u, position=theirs.pos_bias_v, projection=theirs.linear_pos.weight
    )
    q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (theirs.linear_q, theirs.linear_k, theirs.linear_v))
    ours = torch.softmax(relative.queries(q) @ k.mT * 0.5 + relative.bias(q), -1)
    # Its sinusoids are computed in float32.
    assert torch.allclose(ours, weights, rtol=0, atol=1e-6)
    assert torch.allclose(theirs.linear_out((ours @ v).transpose(1, 2).flatten(2)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("memory", [0, 3])
def test_xlnet(memory):
    modeling = pytest.importorskip("transformers.models.xlnet.modeling_xlnet", reason="it is the oracle")
    config = modeling.XLNetConfig(d_model=12, n_head=3, n_layer=1, d_inner=8, vocab_size=5, dropout=0.0)
    model = modeling.XLNetModel(config).double()
    theirs = model.layer[0].rel_attn
    for part in (theirs.q, theirs.k, theirs.r, theirs.r_w_bias, theirs.r_r_bias):
        torch.nn.init.normal_(part)
    relative = TransformerXLRelative(
        content=theirs.r_w_bias, position=theirs.r_r_bias, projection=theirs.r.flatten(1).T, layout="split"
    )
    q_len, kv_len = 5, 5 + memory
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (q_len, kv_len, kv_len))
    waves = model.relative_positional_encoding(q_len, kv_len).double()
    rows = torch.einsum("ibh,hnd->ibnd", waves.expand(-1, 2, -1), theirs.r)
    length_first = [t.permute(2, 0, 1, 3) for t in (q, k, v)]
    weights = theirs.rel_attn_core(*length_first, rows, output_attentions=True)[1].permute(2, 3, 0, 1)
    ours = relative.queries(q) @ k.mT * 0.5 + relative.bias(q, kv_len=kv_len, q_offset=memory)
    assert torch.allclose(torch.softmax(ours, -1), weights, rtol=0, atol=1e-5)


def test_gradients():
    shapes = ((1, 2, 3, 4), (2, 4), (2, 4), (8, 6))
    given_ = [torch.randn(*shape).double().requires_grad_() for shape in shapes]

    def run(q, u, v, w):
        relative = TransformerXLRelative(content=u, position=v, projection=w)
        return relative.queries(q), relative.bias(q, kv_len=5, q_offset=2)

    assert torch.autograd.gradcheck(run, given_)


@pytest.mark.parametrize("layout", ["interleaved", "split"])
def test_words(layout):
    assert str(made(layout=layout)) == f"TransformerXLRelative(2 heads of 4, {layout} sinusoids)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: TransformerXLRelative(
                content=torch.ones(2, 4), position=torch.ones(2, 4), projection=torch.ones(6, 8)
            ),
            r"projection \(heads \* head_dim, width\)\n  got: content \(2, 4\), .*, projection \(6, 8\)\n"
            r"  fix: pass a linear's weight",
        ),
        (
            lambda: TransformerXLRelative(
                content=torch.ones(2, 4), position=torch.ones(1, 4), projection=torch.ones(8, 8)
            ),
            r"got: content \(2, 4\), position \(1, 4\)",
        ),
        (
            lambda: made().bias(torch.ones(1, 3, 5, 4)),
            r"queries \(batch, 2, q_len, 4\).*\n  got: q \(1, 3, 5, 4\)\n  fix: pass queries after",
        ),
        (lambda: made().queries(torch.ones(3, 5, 4)), r"queries \(batch, 2, q_len, 4\).*\n  got: q \(3, 5, 4\)"),
    ],
)
def test_bad_input(wrong, message, unchecked):
    with pytest.raises(MultiheadError, match=message):
        wrong()
