import copy

import pytest
import torch
from torch import nn

from multihead.attend import Sigmoid, Softmax
from multihead.error import MultiheadError
from multihead.layer import HeadGroup, MultiHeadAttention, OutputGate, QKNorm, Scoring
from multihead.pattern import causal, distance, padding, per_head, sliding_window
from multihead.position import ALiBi, RelativeTable, alibi_slopes


def blocks(layer, groups):
    """The separate modules a mixed one is made of: rows of its projections dealt out, its output projection cut."""
    starts = {"q": 0, "k": 0, "v": 0, "o": 0}
    made = []
    for group in groups:
        heads, kv_heads = group.heads, group.kv_heads or group.heads
        v_head_dim = group.v_head_dim or group.head_dim
        one = MultiHeadAttention(layer.embed_dim, group).to(layer.out_proj.weight)
        rows = {"q": heads * group.head_dim, "k": kv_heads * group.head_dim, "v": kv_heads * v_head_dim}
        with torch.no_grad():
            for name, count in rows.items():
                source, target = getattr(layer, f"{name}_proj"), getattr(one, f"{name}_proj")
                target.weight.copy_(source.weight[starts[name] : starts[name] + count])
                target.bias.copy_(source.bias[starts[name] : starts[name] + count])
                starts[name] += count
            columns = heads * v_head_dim
            one.out_proj.weight.copy_(layer.out_proj.weight[:, starts["o"] : starts["o"] + columns])
            one.out_proj.bias.zero_()
            starts["o"] += columns
        made.append(one)
    assert starts["o"] == layer.out_proj.weight.shape[1]
    return made


MIXED = (
    [HeadGroup(2, 16), HeadGroup(4, 8)],
    [HeadGroup(2, 12, kv_heads=1, v_head_dim=5), HeadGroup(1, 8), HeadGroup(4, 3, kv_heads=2, v_head_dim=7)],
    [HeadGroup(2, 8, mask=sliding_window(3)), HeadGroup(2, 8, mask=distance(0) | distance(2))],
)


@pytest.mark.parametrize("groups", MIXED)
def test_a_mixed_layer_is_the_sum_of_separate_ones(randomise, groups):
    layer = randomise(MultiHeadAttention(24, groups)).double()
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    parts = blocks(layer, groups)
    for mask in (None, causal(), torch.rand(2, 1, 7, 7) < 0.7):
        want = sum(part(x, mask=mask) for part in parts) + layer.out_proj.bias
        torch.testing.assert_close(layer(x, mask=mask), want, rtol=1e-10, atol=1e-10)


def test_masks_and_biases_of_each_head_are_dealt_out(randomise):
    groups = MIXED[1]
    layer = randomise(MultiHeadAttention(24, groups)).double()
    x = torch.randn(2, 6, 24, dtype=torch.float64)
    mask, bias = torch.rand(2, 7, 6, 6) < 0.7, torch.randn(1, 7, 6, 6, dtype=torch.float64)
    slopes = ALiBi(torch.rand(7, dtype=torch.float64))
    for given in (bias, slopes):
        want, start = layer.out_proj.bias, 0
        for part in blocks(layer, groups):
            heads = torch.arange(start, start + part.heads)
            mine = given[:, heads] if isinstance(given, torch.Tensor) else given.pick(heads)
            want, start = want + part(x, mask=mask[:, heads], bias=mine), start + part.heads
        torch.testing.assert_close(layer(x, mask=mask, bias=given), want, rtol=1e-10, atol=1e-10)


def test_gradients_reach_every_parameter_of_every_group(randomise):
    groups = [
        HeadGroup(2, 8, scoring=Scoring(norm=QKNorm(), sinks=True), gate=OutputGate(bias=True)),
        HeadGroup(3, 4, position=RelativeTable(nn.Parameter(torch.randn(8, 3))), gate=OutputGate(per="channel")),
    ]
    layer = randomise(MultiHeadAttention(12, groups))
    layer(torch.randn(2, 5, 12)).square().sum().backward()
    assert {name for name, p in layer.named_parameters() if p.grad is None or not p.grad.any()} <= {"k_proj.bias"}
    assert len(list(layer.parameters())) == 8 + 3 + 2 + 1 + 1


def test_one_group_is_the_plain_module_bit_for_bit(randomise):
    plain = randomise(MultiHeadAttention(16, 4, kv_heads=2))
    for heads in (HeadGroup(4, kv_heads=2), [HeadGroup(4, 4, kv_heads=2)]):
        other = MultiHeadAttention(16, heads)
        other.load_state_dict(plain.state_dict())
        x = torch.randn(2, 5, 16)
        assert torch.equal(plain(x, mask=causal()), other(x, mask=causal()))


@pytest.mark.parametrize(
    "norm", [QKNorm(), QKNorm(kind="layer", over="each", eps=1e-3), QKNorm(over="all"), QKNorm(kind="l2")]
)
def test_norms_scale_softcap_and_sinks_by_hand(randomise, norm):
    scoring = Scoring(norm=norm, scale=0.7, softcap=2.0, sinks=True)
    layer = randomise(MultiHeadAttention(12, HeadGroup(4, 6, kv_heads=2, scoring=scoring))).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    part = layer.parts[0]

    def normed(rows, weight):
        heads = [row.split(6, -1) for row in rows.unbind(1)]
        every = rows if norm.over == "all" else None
        made = []
        for token, parts in enumerate(heads):
            done = []
            for h, numbers in enumerate(parts):
                whole = numbers if every is None else every[:, token]
                if norm.kind == "l2":
                    done.append(numbers / whole.square().sum(-1, keepdim=True).sqrt())
                    continue
                mean = whole.mean(-1, keepdim=True) if norm.kind == "layer" else 0.0
                size = ((whole - mean).square().mean(-1, keepdim=True) + norm.eps).sqrt()
                factor = {
                    "head": lambda h: weight,
                    "each": lambda h: weight[h],
                    "all": lambda h: weight[6 * h : 6 * h + 6],
                }
                done.append((numbers - mean) / size * factor[norm.over](h))
            made.append(torch.stack(done, 1))
        return torch.stack(made, 2)

    q, k = (normed(getattr(layer, f"{n}_proj")(x), getattr(part, f"{n}_norm").weight) for n in "qk")
    v = layer.v_proj(x).unflatten(2, (2, 6)).transpose(1, 2)
    heads = []
    for h in range(4):
        scores = 2.0 * torch.tanh(q[:, h] @ k[:, h // 2].mT * 0.7 / 2.0)
        beside = part.sinks[h].expand(2, 5, 1)
        heads.append(torch.softmax(torch.cat([scores, beside], -1), -1)[..., :-1] @ v[:, h // 2])
    want = layer.out_proj(torch.cat(heads, -1))
    torch.testing.assert_close(layer(x), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("per", ["head", "channel"])
def test_gates_multiply_outputs_before_they_are_joined(randomise, per):
    layer = randomise(MultiHeadAttention(12, HeadGroup(3, 4, gate=OutputGate(per=per, bias=True))))
    plain = MultiHeadAttention(12, 3, head_dim=4)
    plain.load_state_dict({n: p for n, p in layer.state_dict().items() if not n.startswith("parts")})
    x, seen = torch.randn(2, 5, 12), []
    plain.out_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    plain(x)
    logits = layer.parts[0].gate(x)
    gates = torch.sigmoid(logits.repeat_interleave(4, -1) if per == "head" else logits)
    torch.testing.assert_close(layer(x), layer.out_proj(seen[0] * gates), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        layer.parts[0].gate.weight.zero_()
        layer.parts[0].gate.bias.zero_()
    torch.testing.assert_close(layer(x), layer.out_proj(seen[0] / 2), rtol=1e-5, atol=1e-5)


def test_a_learned_table_is_a_parameter_that_modules_may_share(randomise):
    table = nn.Parameter(torch.randn(8, 2))
    first, second = (MultiHeadAttention(8, HeadGroup(2, 4, position=RelativeTable(table))) for _ in range(2))
    model = randomise(nn.Sequential(first, second))
    assert sum(p is table for p in model.parameters()) == 1
    x = torch.randn(2, 5, 8)
    want = MultiHeadAttention(8, 2)
    want.load_state_dict({n: p for n, p in first.state_dict().items() if not n.startswith("parts")})
    torch.testing.assert_close(first(x), want(x, bias=RelativeTable(table)))
    (model(x) ** 2).sum().backward()
    assert table.grad is not None
    twin = copy.deepcopy(model)
    with torch.no_grad():
        table.add_(1.0 + torch.rand_like(table))
    assert not torch.allclose(model(x), twin(x))


def test_a_given_bias_moves_with_the_module_and_is_not_saved():
    layer = MultiHeadAttention(8, HeadGroup(2, 4, position=ALiBi(alibi_slopes(2)))).double()
    assert layer(torch.randn(1, 3, 8, dtype=torch.float64)).dtype == torch.float64
    assert not any("bias" in name for name in layer.state_dict() if name.startswith("parts"))


def test_a_position_bias_and_a_bias_of_the_call_add_up(randomise):
    layer = randomise(MultiHeadAttention(8, HeadGroup(2, 4, position=ALiBi(alibi_slopes(2)))))
    plain = MultiHeadAttention(8, 2)
    plain.load_state_dict(layer.state_dict())
    x, bias = torch.randn(2, 5, 8), torch.randn(1, 2, 5, 5)
    both = bias + ALiBi(alibi_slopes(2)).scores(torch.arange(5), torch.arange(5))
    torch.testing.assert_close(layer(x, bias=bias), plain(x, bias=both), rtol=1e-5, atol=1e-5)


def test_fused_and_split_are_the_same_module(randomise):
    split = randomise(MultiHeadAttention(12, [HeadGroup(2, 4), HeadGroup(1, 6)]))
    fused = copy.deepcopy(split).fuse()
    x, other = torch.randn(2, 5, 12), torch.randn(2, 3, 12)
    assert set(fused.state_dict()) == set(split.state_dict())
    assert len(list(fused.parameters())) == len(list(split.parameters())) - 4
    for args in ((x,), (x, other), (x, other, torch.randn(2, 3, 12))):
        torch.testing.assert_close(fused(*args), split(*args), rtol=1e-5, atol=1e-5)
    again = MultiHeadAttention(12, [HeadGroup(2, 4), HeadGroup(1, 6)]).fuse()
    again.load_state_dict(split.state_dict())
    assert torch.equal(again(x), fused(x))
    state = again.unfuse().state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in split.state_dict().items())
    with pytest.raises(MultiheadError, match="no input in common"):
        MultiHeadAttention(12, 3, kv_embed_dim=8).fuse()


def test_to_torch_and_back(randomise):
    for widths in (None, (6, 7)):
        layer = randomise(MultiHeadAttention(12, 3, kv_embed_dim=widths, dropout=0.25))
        theirs = layer.to_torch()
        k_width, v_width = widths or (12, 12)
        args = torch.randn(2, 5, 12), torch.randn(2, 4, k_width), torch.randn(2, 4, v_width)
        theirs.eval()
        torch.testing.assert_close(theirs(*args)[0], layer.eval()(*args), rtol=1e-5, atol=1e-5)
        back = MultiHeadAttention.from_torch(theirs)
        assert back.dropout == 0.25
        assert all(torch.equal(p, back.state_dict()[n]) for n, p in layer.state_dict().items())


@pytest.mark.parametrize(
    "layer",
    [
        MultiHeadAttention(12, [HeadGroup(2, 4), HeadGroup(1, 4)]),
        MultiHeadAttention(12, 4, kv_heads=2),
        MultiHeadAttention(12, 3, head_dim=8),
        MultiHeadAttention(12, HeadGroup(3, mask=causal())),
        MultiHeadAttention(12, HeadGroup(3, position=ALiBi(alibi_slopes(3)))),
        MultiHeadAttention(12, HeadGroup(3, scoring=Scoring(softcap=1.0))),
        MultiHeadAttention(12, HeadGroup(3, gate=OutputGate())),
    ],
)
def test_to_torch_refuses_what_torch_cannot_have(layer):
    with pytest.raises(MultiheadError, match="plain heads of embed_dim / heads only"):
        layer.to_torch()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: MultiHeadAttention(12, []), "at least one HeadGroup"),
        (lambda: MultiHeadAttention(12, [4, 4]), "at least one HeadGroup"),
        (lambda: MultiHeadAttention(12, [HeadGroup(2), HeadGroup(2, 4)]), "head_dim for each of several groups"),
        (lambda: MultiHeadAttention(12, HeadGroup(4), kv_heads=2), "say them in each group"),
        (lambda: MultiHeadAttention(10, HeadGroup(3)), "heads=1, 2, 5 or 10"),
        (lambda: MultiHeadAttention(10.0, 2), "embed_dim=10.0"),
        (lambda: HeadGroup(4, 8, kv_heads=3), "kv_heads=1, 2 or 4"),
        (lambda: HeadGroup(4, 0), "head_dim=0"),
        (lambda: HeadGroup(True, 4), "heads=True"),
        (lambda: HeadGroup(4, 8, position=ALiBi(alibi_slopes(3))), "build it for 4 heads"),
        (lambda: HeadGroup(4, 8, mask=per_head([causal()] * 3)), "build it for 4 heads"),
        (lambda: QKNorm(kind="batch"), "'rms', 'layer', 'l2'"),
        (lambda: QKNorm(over="token"), "'head', 'each', 'all'"),
        (lambda: QKNorm(eps=0.0), "eps=0.0"),
        (lambda: OutputGate(per="layer"), "'head', 'channel'"),
        (lambda: Scoring(sinks=True, normaliser=Sigmoid()), "denominator of a softmax"),
        (lambda: Scoring(sinks=True, normaliser=Softmax(sinks=torch.zeros(2))), "denominator of a softmax"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(unhooked, make, told):
    with pytest.raises(MultiheadError, match=told):
        make()


def test_masks_that_cannot_be_dealt_out_are_refused():
    layer = MultiHeadAttention(12, [HeadGroup(2, 4), HeadGroup(1, 4)])
    x = torch.randn(2, 5, 12)
    with pytest.raises(MultiheadError, match=r"give each group its own: HeadGroup\(..., mask=...\)"):
        layer(x, mask=per_head([causal()] * 3))
    with pytest.raises(MultiheadError, match="a mask for all 3 heads alike"):
        layer(x, mask=torch.ones(2, 2, 5, 5, dtype=torch.bool))


def test_a_mask_the_wrong_way_round_is_told_of():
    layer = MultiHeadAttention(12, 3)
    x, keep = torch.randn(2, 5, 12), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    with pytest.warns(UserWarning, match=r"2 of 2 rows of a mask of shape \(2, 1, 1, 5\) allow no key"):
        layer(x, mask=~keep)
    layer(x, mask=keep)
    assert torch.equal(
        layer(x, mask=padding(torch.zeros(2, 5, dtype=torch.bool))), layer.out_proj.bias.expand(2, 5, 12)
    )


def test_a_mask_of_another_shape_is_refused_beside_a_groups_own():
    layer, x = MultiHeadAttention(12, HeadGroup(3, 4, mask=sliding_window(2))), torch.randn(2, 5, 12)
    for mask in (torch.ones(4, 5, dtype=torch.bool), torch.ones(2, 5, 5, dtype=torch.bool), torch.ones(5, 5)):
        with pytest.raises(MultiheadError, match="mask"):
            layer(x, mask=mask)
