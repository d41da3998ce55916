"""What is done to any module of torch works with these: copies, shared and other weights, checkpoints, strictness."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from multihead.layer import (
    DifferentialAttention,
    HeadGroup,
    Latent,
    LatentAttention,
    LayerLambda,
    LongformerAttention,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Scoring,
    TalkingHeadsAttention,
    TokenLambda,
)
from multihead.pattern import sliding_window
from multihead.position import ALiBi, Rotary, alibi_slopes

MIXED = [
    HeadGroup(2, 4, kv_heads=1, position=Rotary(50.0), scoring=Scoring(norm=QKNorm(), sinks=True), gate=OutputGate()),
    HeadGroup(2, 4, mask=sliding_window(3), position=ALiBi(nn.Parameter(alibi_slopes(2)))),
]


class WithGlobals(LongformerAttention):
    """With a global token, without which its second projections stand idle."""

    def forward(self, query):
        return super().forward(query, global_tokens=[1])


EVERY = {
    "plain": lambda: MultiHeadAttention(8, 2),
    "groups": lambda: MultiHeadAttention(8, copy.deepcopy(MIXED)),
    "latent": lambda: LatentAttention(
        8, 2, Latent(4, nope_dim=3, rope_dim=2, v_dim=3, q_rank=5), position=Rotary(50.0)
    ),
    "differential": lambda: DifferentialAttention(8, 2, kv_heads=1, lambdas=LayerLambda(depth=1)),
    "per token": lambda: DifferentialAttention(8, 2, lambdas=TokenLambda()),
    "talking": lambda: TalkingHeadsAttention(8, 2),
    "longformer": lambda: WithGlobals(8, 2, window=4),
}
NAMES = pytest.mark.parametrize("name", EVERY)


def made(name):
    layer = EVERY[name]().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.5 if parameter.ndim > 1 else 1.0))
    return layer


def x():
    return torch.randn(2, 5, 8, dtype=torch.float64)


@NAMES
def test_other_weights_for_one_call(name):
    layer, other, given = made(name), made(name), x()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    told = torch.func.functional_call(layer, dict(other.named_parameters()), (given,))
    torch.testing.assert_close(told, other(given))
    assert not torch.allclose(told, layer(given))
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    told.sum().backward()
    assert all(p.grad is None for p in layer.parameters())
    assert all(p.grad is not None for p in other.parameters())


@NAMES
def test_a_copy_is_its_own(name):
    layer, given = made(name), x()
    twin = copy.deepcopy(layer)
    told = twin(given)
    assert torch.equal(told, layer(given))
    mine, theirs = (list(module.parameters()) for module in (layer, twin))
    assert len(mine) == len(theirs) > 0
    assert not {p.data_ptr() for p in mine} & {p.data_ptr() for p in theirs}
    with torch.no_grad():
        for parameter in mine:
            parameter.zero_()
    assert torch.equal(twin(given), told)


@NAMES
def test_a_shared_weight_stays_one(name):
    first, second, given = made(name), made(name), x()
    second.out_proj.weight = first.out_proj.weight
    model = nn.Sequential(first, second)
    shared = len(list(first.parameters())) + len(list(second.parameters())) - 1
    assert len(list(model.parameters())) == shared
    twin = copy.deepcopy(model)
    assert twin[0].out_proj.weight is twin[1].out_proj.weight
    model(given).square().sum().backward()
    told = first.out_proj.weight.grad
    apart = copy.deepcopy(model)
    apart[1].out_proj.weight = nn.Parameter(apart[1].out_proj.weight.detach().clone())
    apart.zero_grad()
    apart(given).square().sum().backward()
    torch.testing.assert_close(told, apart[0].out_proj.weight.grad + apart[1].out_proj.weight.grad)


@NAMES
@pytest.mark.parametrize("reentrant", [False, True])
def test_computed_again_for_the_gradient(name, reentrant):
    layer, given = made(name).train(), x().requires_grad_()
    sources = [given, *layer.parameters()]
    plain = torch.autograd.grad(layer(given).square().sum(), sources)
    layer.zero_grad()
    checkpoint(layer, given, use_reentrant=reentrant).square().sum().backward()
    torch.testing.assert_close([source.grad for source in sources], list(plain))


@NAMES
def test_a_state_dict_is_taken_whole_or_not_at_all(name):
    layer, given = made(name), x()
    state = layer.state_dict()
    assert set(state) == {key for key, _ in layer.named_parameters()} | {key for key, _ in layer.named_buffers()}
    kept = io.BytesIO()
    torch.save(state, kept)
    kept.seek(0)
    other = EVERY[name]().double()
    other.load_state_dict(torch.load(kept, weights_only=True))
    assert torch.equal(other(given), layer(given))
    for key in state:
        with pytest.raises(RuntimeError, match=f"Missing.*{key}"):
            other.load_state_dict({k: v for k, v in state.items() if k != key})
        with pytest.raises(RuntimeError, match="size mismatch"):
            other.load_state_dict(state | {key: torch.ones(3, 17, 3)})
    with pytest.raises(RuntimeError, match=r"Unexpected.*another\.weight"):
        other.load_state_dict(state | {"another.weight": torch.ones(1)})
    told = other.load_state_dict({"another.weight": torch.ones(1)}, strict=False)
    assert (set(told.missing_keys), told.unexpected_keys) == (set(state), ["another.weight"])
