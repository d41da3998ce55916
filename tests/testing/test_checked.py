"""The checks of types that every test runs under: what they must find, and what they must let pass."""

import dataclasses

import beartype
import jaxtyping
import pytest
import torch
from jaxtyping import Float, Int, TypeCheckError
from torch import Tensor

from checked import jaxtyped
from multihead.pattern import padding
from multihead.record import Quantity

check = jaxtyped(typechecker=beartype.beartype)


@check
def rows(x: Float[Tensor, "n m"], y: Float[Tensor, "n k"] | None = None, *, cut: int = 0) -> Float[Tensor, "n m"]:
    return x[cut:]


@check
def plain(count: int, names: "tuple[str, ...]" = ()) -> str:
    return names[0] if names else count


@check
def parts(of: dict[str, list[Float[Tensor, " n"]]]) -> int:
    return len(of)


@check
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    left: Float[Tensor, " n"]
    right: Float[Tensor, " n"]
    name: str = ""


@check
def written(x: "Float[Tensor, 'n']", y: "Unknown" = None) -> "Float[Tensor, 'n']":
    return x[1:]


def test_what_fits_passes():
    assert rows(torch.ones(2, 3), torch.ones(2, 5)).shape == (2, 3)
    assert plain(1, ("a",)) == "a"
    assert parts({"a": [torch.ones(2), torch.ones(2)]}) == 1
    assert Pair(left=torch.ones(2), right=torch.ones(2)).name == ""
    rows(torch.ones(4, 3))
    rows(torch.ones(2, 3))


@pytest.mark.parametrize(
    "call",
    [
        lambda: rows(torch.ones(2)),
        lambda: rows(torch.ones(2, 3, dtype=torch.long)),
        lambda: rows(torch.ones(2, 3), torch.ones(3, 3)),
        lambda: rows(torch.ones(2, 3), cut=torch.tensor(0)),
        lambda: rows(torch.ones(2, 3), cut=1),
        lambda: plain("a"),
        lambda: plain(1),
        lambda: plain(1, ("a", 1)[1:]),
        lambda: parts({"a": [torch.ones(2, 2)]}),
        lambda: Pair(left=torch.ones(2), right=torch.ones(3)),
        lambda: Pair(left=torch.ones(2), right=torch.ones(2), name=1),
        lambda: written(torch.ones(2)),
        lambda: written(torch.ones(2, 2)),
    ],
)
def test_what_does_not_fit_is_found(call, monkeypatch):
    """In arguments, in results, between two of them, and in fields."""
    with pytest.raises(TypeCheckError):
        call()
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    call()


def test_a_call_within_a_call_has_axes_of_its_own():
    @check
    def outer(x: Float[Tensor, "n m"], y: Int[Tensor, " n"]) -> Float[Tensor, "n m"]:
        rows(torch.ones(7, 9))
        return x

    assert outer(torch.ones(2, 3), torch.ones(2, dtype=torch.long)).shape == (2, 3)
    with pytest.raises(TypeCheckError):
        outer(torch.ones(2, 3), torch.ones(7, dtype=torch.long))


def test_the_house_is_under_it():
    with pytest.raises(TypeCheckError):
        Quantity(name=1, title="", unit="", formula="")
    with pytest.raises(TypeCheckError):
        padding(torch.ones(2, 3))
