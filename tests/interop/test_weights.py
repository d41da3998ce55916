import pytest
import torch
from torch import nn

from multihead.error import MultiheadError
from multihead.interop import check_weights


def test_finite_weights_pass():
    model = nn.Linear(3, 4)
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    check_weights(model)


def test_large_weights_pass():
    model = nn.Linear(300, 400).half()
    with torch.no_grad():
        model.weight.fill_(60000.0)
    check_weights(model)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none_are_counted(wrong):
    model = nn.Sequential(*(nn.Linear(3, 4) for _ in range(3)))
    with torch.no_grad():
        for linear in model:
            linear.weight[0, :2], linear.bias[1] = wrong, wrong
    with pytest.raises(MultiheadError) as caught:
        check_weights(model)
    assert caught.value.arrived == (
        "NaN or infinity in 0.weight: 2 of 12, 0.bias: 1 of 4, 1.weight: 2 of 12 and 3 more parameters"
    )


def test_infinities_that_cancel_are_seen():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[torch.inf, -torch.inf]]))
    with pytest.raises(MultiheadError, match="weight: 2 of 2"):
        check_weights(model)


def test_integers_are_left_alone():
    model = nn.Module()
    model.packed = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
    check_weights(model)
