"""Shaw's relative positions against loops over pairs and transformers' SpeechT5 and wav2vec2-BERT."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from multihead.error import MultiheadError
from multihead.position import ShawRelative


def by_pairs(q, table, first, kv_len, q_offset, scale):
    """q_i . table[clip(i - j)], one pair at a time."""
    out = q.new_zeros(*q.shape[:3], kv_len)
    for i in range(q.shape[2]):
        for j in range(kv_len):
            row = min(max(q_offset + i - j - first, 0), len(table) - 1)
            out[:, :, i, j] = scale * (q[:, :, i] * table[row]).sum(-1)
    return out


@given(
    q_len=st.integers(0, 5),
    kv_len=st.integers(0, 6),
    q_offset=st.integers(-4, 9),
    distances=st.integers(1, 8),
    first=st.none() | st.integers(-9, 3),
)
def test_scores_by_pairs(q_len, kv_len, q_offset, distances, first):
    table, q = torch.randn(distances, 4, dtype=torch.float64), torch.randn(2, 3, q_len, 4, dtype=torch.float64)
    relative = ShawRelative(keys=table, first=first)
    start = -(distances // 2) if first is None else first
    ours = relative.bias(q, kv_len=kv_len, q_offset=q_offset, scale=0.3)
    assert torch.allclose(ours, by_pairs(q, table, start, kv_len, q_offset, 0.3), rtol=0, atol=1e-12)


def test_the_default_scale_and_length():
    relative, q = ShawRelative(keys=torch.randn(5, 16)), torch.randn(1, 2, 3, 16)
    assert torch.equal(relative.bias(q), relative.bias(q, kv_len=3, scale=0.25))


def test_output_by_pairs():
    keys, values = torch.randn(7, 4).double(), torch.randn(7, 6).double()
    weights = torch.rand(2, 3, 4, 5).double()
    ours = ShawRelative(keys=keys, values=values).output(weights, q_offset=2)
    expected = torch.zeros(2, 3, 4, 6, dtype=torch.float64)
    for i in range(4):
        for j in range(5):
            expected[:, :, i] += weights[:, :, i, j, None] * values[min(max(2 + i - j, -3), 3) + 3]
    assert torch.allclose(ours, expected, rtol=0, atol=1e-12)


@given(shift=st.integers(0, 50), split=st.integers(0, 5))
def test_scores_depend_on_distances_alone_and_an_offset_continues(shift, split):
    relative, q = ShawRelative(keys=torch.randn(9, 4).double()), torch.randn(1, 2, 5, 4).double()
    whole = relative.bias(q, kv_len=5)
    assert torch.allclose(relative.bias(q, kv_len=5 + shift, q_offset=shift)[..., shift:], whole, atol=1e-14)
    parts = [
        relative.bias(part, kv_len=5, q_offset=at) for part, at in ((q[:, :, :split], 0), (q[:, :, split:], split))
    ]
    assert torch.allclose(torch.cat(parts, 2), whole, atol=1e-14)


def test_speecht5():
    modeling = pytest.importorskip("transformers.models.speecht5.modeling_speecht5", reason="it is the oracle")
    theirs = modeling.SpeechT5Attention(12, 3).double()
    encoding = modeling.SpeechT5RelativePositionalEncoding(4, max_length=3).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    expected, weights, *_ = theirs(x, position_bias=encoding(x), output_attentions=True)
    q, k, v = (
        linear(x).unflatten(-1, (3, 4)).transpose(1, 2) for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    )
    relative = ShawRelative(keys=encoding.pe_k.weight, first=-3)
    ours = torch.softmax(q @ k.mT * 0.5 + relative.bias(q), -1)
    assert torch.allclose(ours, weights, rtol=0, atol=1e-12)
    assert torch.allclose(theirs.out_proj((ours @ v).transpose(1, 2).flatten(2)), expected, rtol=0, atol=1e-12)


def test_wav2vec2_bert_counts_the_other_way():
    modeling = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert", reason="the oracle")
    module = torch.nn.Module()
    module.left_max_position_embeddings, module.right_max_position_embeddings, module.scaling = 4, 2, 0.5
    module.distance_embedding = torch.nn.Embedding(7, 4).double()
    q, k = torch.randn(2, 2, 3, 9, 4, dtype=torch.float64)
    expected = modeling._apply_relative_key_position_encoding(module, q, k)[1]
    relative = ShawRelative(keys=module.distance_embedding.weight.flip(0), first=-2)
    assert torch.allclose(relative.bias(q), expected, rtol=0, atol=1e-12)


def test_gradients():
    q, keys, values = (torch.randn(*shape).double().requires_grad_() for shape in ((1, 2, 4, 3), (5, 3), (5, 2)))
    weights = torch.rand(1, 2, 4, 6, dtype=torch.float64, requires_grad=True)

    def run(q, keys, values, weights):
        relative = ShawRelative(keys=keys, values=values)
        return relative.bias(q, kv_len=6, q_offset=2), relative.output(weights, q_offset=2)

    assert torch.autograd.gradcheck(run, (q, keys, values, weights))


def test_with_weight_and_words():
    relative = ShawRelative(keys=torch.randn(5, 4), first=-4)
    other = relative.with_weight(torch.randn(5, 4), torch.randn(5, 4))
    assert other.first == -4
    assert str(relative) == "ShawRelative(distances -4..0, keys)"
    assert str(other) == "ShawRelative(distances -4..0, keys and values)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: ShawRelative(keys=torch.ones(4)),
            r"a table of floating numbers.*\n  got: keys \(4,\) torch.float32\n  fix: pass the weight",
        ),
        (lambda: ShawRelative(keys=torch.ones(4, 2).long()), r"got: keys \(4, 2\) torch.int64"),
        (lambda: ShawRelative(keys=torch.ones(0, 2)), r"at least one distance\n  got: keys \(0, 2\)"),
        (
            lambda: ShawRelative(keys=torch.ones(4, 2), values=torch.ones(3, 2)),
            r"as many distances for values.*\n  got: keys \(4, 2\) .*, values \(3, 2\) .*\n  fix: pass two tables",
        ),
        (
            lambda: ShawRelative(keys=torch.ones(4, 2)).bias(torch.ones(1, 1, 3, 5)),
            r"queries \(batch, heads, q_len, 2\).*\n  got: q \(1, 1, 3, 5\), keys \(4, 2\)\n  fix: pass queries after",
        ),
        (
            lambda: ShawRelative(keys=torch.ones(4, 2)).output(torch.ones(1, 1, 3, 5)),
            r"the output term of ShawRelative\n  got: values=None\n  fix: pass values=",
        ),
    ],
)
def test_bad_input(wrong, message, unchecked):
    with pytest.raises(MultiheadError, match=message):
        wrong()
