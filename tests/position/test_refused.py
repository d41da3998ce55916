"""Numbers and tensors of another kind: refused in words where a position is built, not deep inside of a call."""

import re

import jaxtyping
import pytest
import torch

from multihead.error import MultiheadError
from multihead.position import NTK, ALiBi, DynamicNTK, Llama3, Rotary, YaRN, alibi_slopes


@pytest.fixture(autouse=True)
def _unhooked():
    """What a caller gets to read outside of tests, where nothing else checks types."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Rotary("a"), "base=a"),
        (lambda: Rotary(None), "base=None"),
        (lambda: Rotary(torch.tensor([1.0, 2.0])), "a rotary base above 1"),
        (lambda: Rotary(dim="a"), "dim=a"),
        (lambda: Rotary(dim=4.0), "dim=4.0"),
        (lambda: Rotary(dim=[4]), "dim=[4]"),
        (lambda: Rotary(scaling=NTK), "Rotary(scaling=...)"),
        (lambda: Rotary(scaling="yarn"), "scaling=str 'yarn'"),
        (lambda: Rotary(scaling=4.0), "scaling=float '4.0'"),
        (lambda: NTK("a"), "factor=a"),
        (lambda: NTK(None), "factor=None"),
        (lambda: DynamicNTK(2.0, None), "trained_length=None"),
        (lambda: DynamicNTK(2.0, 4.5), "trained_length=4.5"),
        (lambda: Llama3(low="a"), "low=a"),
        (lambda: YaRN(torch.ones(2), 4096), "YaRN with a factor of at least 1"),
        (lambda: ALiBi(8), "slopes=int '8'"),
        (lambda: alibi_slopes("a"), "heads=a"),
        (lambda: alibi_slopes(2.5), "heads=2.5"),
        (lambda: alibi_slopes(2**62), "for 65536 at most"),
    ],
)
def test_numbers_of_another_kind_build_no_position(build, told):
    with pytest.raises(MultiheadError, match=re.escape(told)):
        build()
