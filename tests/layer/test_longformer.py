import math

import pytest
import torch
from transformers.models.longformer.configuration_longformer import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from multihead.error import MultiheadError
from multihead.layer import LongformerAttention, MultiHeadAttention
from multihead.pattern import Pattern, band, causal, document, global_tokens, padding

WIDE = torch.float64


def build(randomise, **given):
    return randomise(LongformerAttention(12, 3, **({"window": 4} | given))).double()


def by_hand(layer, x, flags, allowed):
    """The definition for one sequence, row by row; allowed (heads, length, length)."""
    w = {name: p.detach() for name, p in layer.named_parameters()}
    out, d, n = [], layer.head_dim, len(x)
    for h in range(layer.heads):
        rows = slice(h * d, (h + 1) * d)
        made = {
            name: x @ w[f"{name}.weight"][rows].T + w[f"{name}.bias"][rows]
            for kind in ("", "global_")
            for name in (f"{kind}q_proj", f"{kind}k_proj", f"{kind}v_proj")
        }
        head = torch.zeros(n, d, dtype=WIDE)
        for i in range(n):
            kind = "global_" if flags[i] else ""
            near = [flags[i] or flags[j] or abs(i - j) <= layer.window // 2 for j in range(n)]
            seen = [j for j in range(n) if near[j] and allowed[h, i, j]]
            if seen:
                scores = [made[f"{kind}q_proj"][i] @ made[f"{kind}k_proj"][j] / math.sqrt(d) for j in seen]
                weights = torch.stack(scores).softmax(0)
                head[i] = sum(a * made[f"{kind}v_proj"][j] for a, j in zip(weights, seen, strict=True))
        out.append(head)
    return torch.cat(out, -1) @ w["out_proj.weight"].T + w["out_proj.bias"]


def masks(n):
    """A mask as it is given, and as booleans (2, 3, n, n)."""
    keep = torch.arange(n) < torch.tensor([[n], [n - 4]])
    ids = torch.tensor([0] * 3 + [1] * (n - 3))
    drawn, rows = torch.rand(2, 3, n, n) < 0.6, torch.rand(n, n) < 0.6
    nothing = torch.ones(2, 1, n, 1, dtype=torch.bool)
    nothing[1, 0, 3] = nothing[0, 0, 0] = False
    yield None, torch.ones(2, 3, n, n, dtype=torch.bool)
    for mask in (padding(keep), causal() & padding(keep), document(ids) & causal()):
        yield mask, mask.mask(n, n).expand(2, 3, n, n)
    for mask in (drawn, rows, keep[:, None, None], nothing):
        yield mask, mask.expand(2, 3, n, n)


def test_the_definition_by_hand(randomise):
    layer, n = build(randomise), 11
    x = torch.randn(2, n, 12, dtype=WIDE)
    flags = torch.zeros(2, n, dtype=torch.bool)
    flags[0, [0, 9]] = flags[1, 3] = True
    for mask, allowed in masks(n):
        got = layer(x, global_tokens=flags, mask=mask)
        for b in range(2):
            torch.testing.assert_close(got[b], by_hand(layer, x[b], flags[b], allowed[b]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got[1, 3], layer.out_proj.bias)
    torch.testing.assert_close(got[0, 0], layer.out_proj.bias)


def test_global_tokens_are_said_in_three_ways(randomise):
    layer, x = build(randomise), torch.randn(2, 9, 12, dtype=WIDE)
    flags = torch.zeros(9, dtype=torch.bool)
    flags[[2, 7]] = True
    for mask in (causal(), torch.rand(2, 3, 9, 9) < 0.6, torch.rand(9, 9) < 0.6):
        want = layer(x, global_tokens=[7, 2, 7], mask=mask)
        for given in (flags, flags[None], flags.expand(2, 9)):
            torch.testing.assert_close(layer(x, global_tokens=given, mask=mask), want, rtol=1e-12, atol=1e-12)
    for none in ([], torch.zeros(2, 9, dtype=torch.bool)):
        torch.testing.assert_close(layer(x, global_tokens=none), layer(x))


def test_padding_costs_no_square_of_numbers(randomise):
    layer, x, seen = build(randomise), torch.randn(2, 9, 12, dtype=WIDE), []
    layer.attend = lambda problem: (seen.append(problem), LongformerAttention.attend(layer, problem))[1]
    keep = torch.arange(9) < torch.tensor([[9], [5]])
    for mask in (padding(keep), keep[:, None, None]):
        layer(x, global_tokens=[0], mask=mask)
    assert [problem.q_len for problem in seen] == [9, 1, 9, 1]
    assert all(isinstance(problem.mask, Pattern) for problem in seen)


def plain(layer, prefix=""):
    made = MultiHeadAttention(layer.embed_dim, layer.heads).to(WIDE)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(made, name).load_state_dict(getattr(layer, f"{prefix}{name}").state_dict())
    made.out_proj.load_state_dict(layer.out_proj.state_dict())
    return made


def test_what_it_is_at_its_ends(randomise):
    layer, x = build(randomise), torch.randn(2, 9, 12, dtype=WIDE)
    local, every = plain(layer), plain(layer, "global_")
    torch.testing.assert_close(layer(x), local(x, mask=band(2, 2)), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(x, global_tokens=range(9)), every(x), rtol=1e-10, atol=1e-10)
    # As it starts, both sets of projections are one.
    layer.reset_parameters()
    got = layer(x, global_tokens=[0, 4])
    torch.testing.assert_close(got, plain(layer)(x, mask=band(2, 2) | global_tokens([0, 4])), rtol=1e-10, atol=1e-10)


def test_gradients_reach_everything(randomise):
    layer, x = build(randomise), torch.randn(2, 6, 12, dtype=WIDE, requires_grad=True)
    flags = torch.tensor([[True] + [False] * 5, [False, True, False, True, False, False]])
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, global_tokens=flags), inputs, fast_mode=True)
    layer(x, global_tokens=flags).square().sum().backward()
    none = {name for name, p in layer.named_parameters() if p.grad is None or not p.grad.any()}
    assert none <= {"k_proj.bias", "global_k_proj.bias"}


@pytest.mark.parametrize("marked", [True, False])
def test_equals_longformer_of_transformers(randomise, marked):
    config = LongformerConfig(
        hidden_size=24, num_attention_heads=3, attention_window=[6, 8], attention_probs_dropout_prob=0.1
    )
    theirs = randomise(LongformerSelfAttention(config, 1)).eval()
    ours = LongformerAttention(24, 3, window=8, dropout=0.1).eval()
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    state = {"out_proj.weight": torch.eye(24), "out_proj.bias": torch.zeros(24)}
    for name, value in theirs.state_dict().items():
        module, kind = name.split(".")
        prefix = "global_" if module.endswith("_global") else ""
        state[f"{prefix}{names[module.removesuffix('_global')]}.{kind}"] = value
    ours.load_state_dict(state)
    x, keep = torch.randn(2, 32, 24), torch.arange(32) < torch.tensor([[32], [21]])
    flags = torch.zeros(2, 32, dtype=torch.bool)
    if marked:
        flags[0, [0, 13, 30]] = flags[1, [0, 5]] = True
    # -10000 for padding, 0 for local, 10000 for global attention.
    told = torch.where(flags, 10000.0, torch.where(keep, 0.0, -10000.0))
    with torch.no_grad():
        (want,) = theirs(x, told, told < 0, told > 0, bool(flags.any()))
        got = ours(x, global_tokens=flags, mask=padding(keep))
    torch.testing.assert_close(got[keep], want[keep], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: LongformerAttention(12, 3, window=5), "window=5.*window=4 or 6"),
        (lambda: LongformerAttention(12, 3, window=0), "window=0"),
        (lambda: LongformerAttention(12, 5, window=4), "embed_dim=12, heads=5"),
        (lambda: LongformerAttention(12, 3, window=4, dropout=1.0), "dropout=1.0"),
        (lambda: call(torch.randn(2, 5, 11)), r"query \(batch, length, 12\)"),
        (lambda: call(global_tokens=[5]), r"positions from 0 to 4.*global_tokens=\[5\]"),
        (lambda: call(global_tokens=[-1]), r"positions from 0 to 4.*global_tokens=\[-1\]"),
        (lambda: call(global_tokens=torch.zeros(2, 4, dtype=torch.bool)), r"booleans \(2, 5\) or \(5,\).*\(2, 4\)"),
        (lambda: call(global_tokens=torch.zeros(2, 5)), "torch.float32 of shape"),
        (lambda: call(mask=torch.ones(4, 4, dtype=torch.bool)), "a mask of shape"),
        (lambda: call(mask=torch.zeros(5, 5)), "pass numbers that are added to the scores as `bias=`|boolean mask"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def call(x=None, **given):
    return LongformerAttention(12, 3, window=4)(torch.randn(2, 5, 12) if x is None else x, **given)


def test_it_says_what_it_is():
    assert "window=4" in repr(LongformerAttention(12, 3, window=4))
