import math

import pytest
import torch

from multihead.error import MultiheadError
from multihead.scan import Drawn, EluPlusOne, Favor, FeatureMap, Identity, linear_attention, linear_attention_full

WIDE = torch.float64


def close_pair(width, norm):
    """A query and a key so short that the error's variance is small enough to be measured, as they are multiplied."""
    q, k = torch.randn(2, width, dtype=WIDE)
    return q / q.norm() * norm, k / k.norm() * norm


def estimates(options, q, k, draws):
    """The products of many drawings of so many features; q and k are what is multiplied, divided by width^(1/4).

    They are stretches of one drawing: those at right angles come in squares that are drawn by themselves.
    """
    width, count = len(q), options.features
    many = Favor(features=count * draws, orthogonal=options.orthogonal).draw(width)
    assert not many.shift
    products = many.keys(q * width**0.25) * many.keys(k * width**0.25) * draws
    return products.view(draws, count).sum(1)


def test_elu_plus_one_is_above_zero_everywhere():
    x = torch.tensor([-80.0, -20.0, -1.0, 0.0, 0.5, 30.0], dtype=torch.float32)
    phi = EluPlusOne()
    torch.testing.assert_close(phi.keys(x), torch.nn.functional.elu(x) + 1, rtol=1e-6, atol=1e-6)
    wide = torch.where(x > 0, x.double() + 1, x.double().exp())
    torch.testing.assert_close(phi.queries(x).double(), wide, rtol=1e-5, atol=0)
    assert torch.autograd.gradcheck(phi.keys, (torch.randn(7, dtype=WIDE, requires_grad=True),))


def test_the_maps_are_feature_maps():
    assert all(isinstance(phi, FeatureMap) for phi in (EluPlusOne(), Identity(), Favor().draw(4)))
    x = torch.randn(3, 4)
    assert Identity().queries(x) is x
    assert Favor().draw(64).projection.shape == (266, 64)
    assert torch.equal(Favor().draw(8, generator=torch.Generator().manual_seed(5)).projection,
                       Favor().draw(8, generator=torch.Generator().manual_seed(5)).projection)  # fmt: skip


@pytest.mark.parametrize("features", [16])
def test_the_variance_of_independent_features_is_the_law(features):
    """(exp(|q + k|^2) - 1) / m, relative to the square of the value."""
    q, k = close_pair(8, 0.5)
    draws = 20_000
    relative = estimates(Favor(features=features, orthogonal=False), q, k, draws) / math.exp(float(q @ k))
    law = (math.exp(float((q + k).square().sum())) - 1) / features
    # Six deviations of the mean; with vectors as short as these the fourth moment leaves the variance this near.
    assert abs(float(relative.mean()) - 1) < 6 * (law / draws) ** 0.5
    assert 0.85 < float(relative.var()) / law < 1.2


def test_features_at_right_angles_are_unbiased_and_err_less():
    q, _ = close_pair(8, 0.3)
    draws, truth = 20_000, math.exp(float(q @ q))
    square, plain = (estimates(Favor(features=8, orthogonal=kind), q, q, draws) / truth for kind in (True, False))
    assert abs(float(square.mean()) - 1) < 6 * float(square.std()) / draws**0.5
    # 0.90, measured with deviations of 0.01.
    assert float(square.var()) < 0.96 * float(plain.var())


def test_without_the_signs_they_are_biased():
    """The reason for `haar`: Q of a QR decomposition has a diagonal that leans to one side."""
    width, draws = 8, 20_000
    q, _ = torch.linalg.qr(torch.randn(draws, width, width, dtype=WIDE))
    fixed = Favor(features=width * draws).draw(width).projection.double().view(draws, width, width)
    fixed = fixed / fixed.norm(dim=-1, keepdim=True)
    # Ten deviations of a mean of independent numbers with variance 1 / width.
    bound = 10 * (1 / (width * draws)) ** 0.5
    leaning = q.diagonal(dim1=-2, dim2=-1).mean(0)
    assert float(leaning[:-1].abs().min()) > 2 * bound
    assert float(fixed.mean(0).abs().max()) < bound
    # So an estimate from one square, of two tokens along its first direction, is off by more than chance: by 35 to 40
    # deviations at this length, by 4 to 13 at length 1, where few large numbers decide.
    x = torch.zeros(width, dtype=WIDE)
    x[0] = 0.3
    lengths = torch.randn(draws, width, width, dtype=WIDE).norm(dim=-1, keepdim=True)
    truth = math.exp(0.3**2)
    for directions, biased in ((q, True), (fixed, False)):
        phi = ((directions * lengths) @ x - 0.3**2 / 2).exp()
        relative = phi.square().mean(1) / truth
        off = abs(float(relative.mean()) - 1) / (float(relative.std()) / draws**0.5)
        assert (off > 10) is biased
        assert (off < 6) is not biased


def test_a_performer_nears_the_softmax():
    q, k, v = (torch.randn(1, 2, 20, 4, dtype=WIDE) / 2 for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    errors = []
    for features in (16, 8192):
        phi = Favor(features=features).draw(4)
        errors.append(float((linear_attention(phi.queries(q), phi.keys(k), v).out - want).abs().max()))
    assert errors[1] < 0.05 < errors[0] * 5
    full = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(linear_attention_full(phi.queries(q), phi.keys(k), v), full, rtol=0, atol=0.05)


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_what_keeps_features_finite_looks_at_no_other_token(size):
    phi, x = Favor(features=40).draw(16), size * torch.randn(2, 3, 9, 16)
    other = x.clone()
    other[0, :, 5:], other[1] = 1e6, -1e6
    for features in (phi.queries, phi.keys):
        assert torch.equal(features(x)[0, :, :5], features(other)[0, :, :5])
        assert features(x).isfinite().all()


def test_no_key_overflows_whatever_it_is():
    """Along its longest direction, as far as the exponent is greatest: x = w."""
    width = 256
    phi = Favor(features=300).draw(width)
    assert float(phi.shift) > 0
    longest = phi.projection[phi.projection.norm(dim=1).argmax()] * width**0.25
    sums = phi.keys(longest[None].expand(1000, -1)).sum(0)
    assert sums.isfinite().all()
    assert float(sums.max()) > 1.0
    got = linear_attention(
        phi.queries(longest.view(1, 1, 1, -1)), phi.keys(longest.view(1, 1, 1, -1)), torch.ones(1, 1, 1, 2)
    )
    torch.testing.assert_close(got.out, torch.ones(1, 1, 1, 2))
    assert float(Favor(features=64).draw(16).shift) == 0


def test_gradients_of_normalised_outputs():
    phi = Drawn(projection=torch.randn(6, 4, dtype=WIDE))
    q, k, v = (torch.randn(1, 1, 5, 4, dtype=WIDE, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda q, k, v: linear_attention(phi.queries(q), phi.keys(k), v).out, (q, k, v))


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "a", True])
@pytest.mark.usefixtures("unhooked")
def test_a_number_of_features_that_is_none_is_refused(wrong):
    with pytest.raises(MultiheadError, match=r"Favor\(features=...\): a whole number"):
        Favor(features=wrong)
    with pytest.raises(MultiheadError, match="orthogonal"):
        Favor(orthogonal=2)
