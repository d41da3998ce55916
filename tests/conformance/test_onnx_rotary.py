"""The 8 cases of the RotaryEmbedding operator that come with onnx 1.23.2. Their cosines and sines are any numbers."""

import pytest
import torch

from conformance.onnx_cases import cases
from multihead.position import Rotation


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        found = cases("RotaryEmbedding", "rotaryembedding", metafunc.config.run_seed)
        metafunc.parametrize("case", [pytest.param(case, id=name) for name, case in found.items()])


def rotate(
    x, cos_cache, sin_cache, position_ids=None, *, interleaved=0, rotary_embedding_dim=0, num_heads=0
):  # the operator; how many dimensions turn follows from the caches as well
    heads = x if x.ndim == 4 else x.unflatten(2, (num_heads, -1)).transpose(1, 2)
    cos, sin = (table if position_ids is None else table[position_ids] for table in (cos_cache, sin_cache))
    assert rotary_embedding_dim in (0, 2 * cos.shape[-1])
    turned = Rotation.of(cos, sin, layout="interleaved" if interleaved else "half").apply(heads)
    return turned if x.ndim == 4 else turned.transpose(1, 2).flatten(2)


def test_there_are_8(request):
    assert len(cases("RotaryEmbedding", "rotaryembedding", request.config.run_seed)) == 8


def test_case(case, tally):
    tally("ONNX RotaryEmbedding", "-")
    got = rotate(*case.inputs, **case.attributes)
    torch.testing.assert_close(got, case.wanted[0], rtol=1e-3, atol=1e-6)
