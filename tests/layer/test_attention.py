import copy

import pytest
import torch

from multihead.attend import attention, attention_lse
from multihead.error import MultiheadError
from multihead.layer import MultiHeadAttention
from multihead.pattern import causal, padding, sliding_window


def allowed_for(case, batch, heads, q_len, kv_len):
    """Which (query, key) pairs a case allows, as nested lists, written out by hand; and the mask that says it."""
    offset = kv_len - q_len
    if case == "none":
        rule, mask = (lambda b, h, i, j: True), None
    elif case == "causal":
        rule, mask = (lambda b, h, i, j: j <= i + offset), causal()
    elif case == "window":
        rule, mask = (lambda b, h, i, j: i + offset - 3 < j <= i + offset), causal() & sliding_window(3)
    elif case == "padding":
        lengths = torch.randint(1, kv_len + 1, (batch,)).tolist()
        rule = lambda b, h, i, j: j < lengths[b]  # noqa: E731 - a table of rules
        mask = padding(torch.arange(kv_len) < torch.tensor(lengths)[:, None])
    else:
        table = torch.rand(batch, heads, q_len, kv_len) < 0.6
        table[0, 0, 0] = False
        rule, mask = (lambda b, h, i, j: bool(table[b, h, i, j])), table
    pairs = [
        [[[rule(b, h, i, j) for j in range(kv_len)] for i in range(q_len)] for h in range(heads)] for b in range(batch)
    ]
    return pairs, mask


@pytest.mark.parametrize("case", ["none", "causal", "window", "padding", "table"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_self_attention_is_concat_of_heads(randomise, concat_by_hand, case, kv_heads):
    layer = randomise(MultiHeadAttention(12, heads=4, kv_heads=kv_heads)).double()
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    pairs, mask = allowed_for(case, 2, 4, 6, 6)
    want, _ = concat_by_hand(layer, x, x, x, pairs)
    torch.testing.assert_close(layer(x, mask=mask), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", ["none", "causal", "window", "padding", "table"])
@pytest.mark.parametrize("bias", [True, False])
def test_cross_attention_is_concat_of_heads(randomise, concat_by_hand, case, bias):
    layer = MultiHeadAttention(10, heads=4, kv_heads=2, head_dim=3, kv_embed_dim=(7, 9), bias=bias)
    layer = randomise(layer).double()
    query, key, value = (torch.randn(2, n, d, dtype=torch.float64) for n, d in ((4, 10), (7, 7), (7, 9)))
    pairs, mask = allowed_for(case, 2, 4, 4, 7)
    want, _ = concat_by_hand(layer, query, key, value, pairs)
    offset = 3 if case in {"causal", "window"} else None
    torch.testing.assert_close(layer(query, key, value, mask=mask, q_offset=offset), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", ["causal", "table"])
def test_gradients_are_those_of_the_definition(randomise, concat_by_hand, case):
    layer = randomise(MultiHeadAttention(8, heads=4, kv_heads=2)).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    pairs, mask = allowed_for(case, 2, 4, 5, 5)
    pull = torch.randn(2, 5, 8, dtype=torch.float64)
    want, weights = concat_by_hand(layer, other, other, other, pairs)
    (want * pull).sum().backward()
    (layer(x, mask=mask) * pull).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-9, atol=1e-9)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.015), (torch.float16, 0.002)]
)
def test_narrow_types_stay_near_the_definition(randomise, concat_by_hand, dtype, tolerance):
    """Weights and inputs are rounded to the type first; the error is measured against the largest output."""
    layer = randomise(MultiHeadAttention(32, heads=4, kv_heads=2)).to(dtype)
    x = torch.randn(2, 9, 32).to(dtype)
    pairs, mask = allowed_for("causal", 2, 4, 9, 9)
    want, _ = concat_by_hand(layer, x, x, x, pairs)
    got = layer(x, mask=mask)
    assert got.dtype == dtype
    assert (got.double() - want).abs().max() <= tolerance * want.abs().max()


def test_key_defaults_to_query_and_value_to_key(randomise):
    layer = randomise(MultiHeadAttention(8, heads=2))
    x, y = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    assert torch.equal(layer(x), layer(x, x, x))
    assert torch.equal(layer(x, y), layer(x, y, y))
    assert not torch.allclose(layer(x, y), layer(x))


def test_bias_is_added_to_the_scores(randomise, concat_by_hand):
    """A bias of -1e4 hides a key as a mask does."""
    layer = randomise(MultiHeadAttention(8, heads=2))
    x = torch.randn(1, 5, 8)
    hidden = torch.rand(1, 2, 5, 5) < 0.4
    hidden[..., 0] = False
    want = layer(x, mask=~hidden)
    torch.testing.assert_close(layer(x, bias=hidden * -1e4), want, rtol=1e-5, atol=1e-5)


def test_weights_start_at_xavier_and_biases_at_zero():
    layer = MultiHeadAttention(64, heads=8, kv_heads=2, kv_embed_dim=32)
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        else:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.95 * bound < parameter.abs().max() <= bound, name
            assert abs(parameter.var() / (bound**2 / 3) - 1) < 0.2, name


def test_parameters_have_plain_names_and_shapes():
    layer = MultiHeadAttention(16, heads=4, kv_heads=2, head_dim=5, kv_embed_dim=(6, 7))
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "q_proj.weight": (20, 16),
        "q_proj.bias": (20,),
        "k_proj.weight": (10, 6),
        "k_proj.bias": (10,),
        "v_proj.weight": (10, 7),
        "v_proj.bias": (10,),
        "out_proj.weight": (16, 20),
        "out_proj.bias": (16,),
    }
    bare = MultiHeadAttention(16, heads=4, bias=False)
    assert [name for name, _ in bare.named_parameters()] == [f"{n}_proj.weight" for n in ("q", "k", "v", "out")]


def test_state_dict_round_trip(randomise, tmp_path):
    layer, other = (randomise(MultiHeadAttention(12, heads=4, kv_heads=2)) for _ in range(2))
    x = torch.randn(2, 5, 12)
    assert not torch.equal(layer(x), other(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_attend_is_the_seam_between_heads_and_output(randomise):
    """Whoever replaces `attend` sees the problem and decides the heads; the rest of the layer follows."""
    layer = randomise(MultiHeadAttention(12, heads=4, kv_heads=2))
    x = torch.randn(2, 5, 12)
    want = layer(x, mask=causal())
    problems = []

    def gated(problem):
        problems.append(problem)
        heads = MultiHeadAttention.attend(layer, problem)
        assert heads.shape == (2, 4, 5, 3)
        heads = heads.clone()
        heads[:, 1] = 0
        return heads

    layer.attend = gated
    got = layer(x, mask=causal())
    del layer.attend
    assert torch.equal(layer(x, mask=causal()), want)
    (problem,) = problems
    assert (problem.q.shape, problem.k.shape) == ((2, 4, 5, 3), (2, 2, 5, 3))
    with torch.no_grad():
        layer.out_proj.weight[:, 3:6] = 0
    torch.testing.assert_close(got, layer(x, mask=causal()), rtol=1e-6, atol=1e-6)


def test_the_output_projection_gets_the_joined_heads_in_one_piece(randomise):
    """What looks for the projection finds it by the data it is fed."""
    layer = randomise(MultiHeadAttention(12, heads=4))
    seen = []
    layer.out_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    layer(torch.randn(2, 5, 12))
    assert seen[0].shape == (2, 5, 12)
    assert seen[0].is_contiguous()


def test_a_named_backend_runs_or_raises(randomise):
    layer = randomise(MultiHeadAttention(12, heads=4))
    x = torch.randn(2, 5, 12)
    want = layer(x)
    layer.backend = "tiled"
    torch.testing.assert_close(layer(x), want, rtol=1e-5, atol=1e-5)
    layer.backend = "warp"
    with pytest.raises(MultiheadError, match="warp"):
        layer(x)


def test_repr_tells_the_sizes():
    assert "MultiHeadAttention(\n  512, heads=8, head_dim=64\n" in repr(MultiHeadAttention(512))
    layer = MultiHeadAttention(512, heads=8, kv_heads=2, dropout=0.1, backend="tiled")
    assert "512, heads=8, head_dim=64, kv_heads=2, dropout=0.1, backend='tiled'" in repr(layer)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"embed_dim": 0}, "embed_dim=0"),
        ({"embed_dim": 8, "heads": 0}, "heads=0"),
        ({"embed_dim": 8, "heads": 4, "kv_heads": 0}, "kv_heads=0"),
        ({"embed_dim": 8, "heads": 4, "head_dim": -2}, "head_dim=-2"),
        ({"embed_dim": 8, "heads": 4, "kv_embed_dim": (8, 0)}, r"kv_embed_dim=\(8, 0\)"),
        ({"embed_dim": 8, "heads": 4, "kv_heads": 3}, "heads=4, kv_heads=3\n  fix: kv_heads=1, 2 or 4"),
        ({"embed_dim": 8, "heads": 4, "dropout": 1.0}, "dropout=1.0"),
        ({"embed_dim": 8, "heads": 4, "dropout": -0.1}, "dropout=-0.1"),
    ],
)
def test_sizes_that_make_no_layer_are_refused(sizes, told):
    with pytest.raises(MultiheadError, match=told):
        MultiHeadAttention(**sizes)


def test_inputs_that_do_not_fit_are_refused_with_every_shape():
    layer = MultiHeadAttention(8, heads=2, kv_embed_dim=6)
    query, key = torch.randn(2, 3, 8), torch.randn(2, 4, 6)
    with pytest.raises(MultiheadError, match=r"key \(batch, length, 6\)\n  got: query \(2, 3, 8\), key \(2, 3, 8\)"):
        layer(query)
    with pytest.raises(MultiheadError, match=r"query \(batch, length, 8\)\n  got: query \(3, 8\), key \(2, 4, 6\)"):
        layer(query[0], key)
    with pytest.raises(
        MultiheadError, match=r"one length for key and value\n  got: .* key \(2, 4, 6\), value \(2, 5, 6\)"
    ):
        layer(query, key, torch.randn(2, 5, 6))
    with pytest.raises(MultiheadError, match=r"key=None with value \(2, 4, 6\)"):
        layer(query, value=key)


def test_nothing_in_gives_nothing_or_the_bias(randomise):
    layer = randomise(MultiHeadAttention(8, heads=2))
    some, none = torch.randn(2, 3, 8), torch.randn(2, 0, 8)
    assert layer(torch.randn(0, 3, 8)).shape == (0, 3, 8)
    assert layer(none).shape == (2, 0, 8)
    assert torch.equal(layer(some, none), layer.out_proj.bias.expand(2, 3, 8))


def test_attention_function_and_module_agree(randomise):
    layer = randomise(MultiHeadAttention(8, heads=2))
    x = torch.randn(1, 6, 8)
    q, k, v = (p(x).view(1, 6, 2, 4).transpose(1, 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    heads = attention(q, k, v, mask=causal())
    assert torch.equal(layer.out_proj(heads.transpose(1, 2).reshape(1, 6, 8)), layer(x, mask=causal()))
    torch.testing.assert_close(attention_lse(q, k, v, mask=causal()).out, heads)
