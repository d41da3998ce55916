"""The 93 cases of the Attention operator that come with onnx 1.23.2, on every backend."""

import pytest
import torch

from conformance.forcing import every_backend
from conformance.onnx_attention import translate
from conformance.onnx_cases import cases

SUITE = "ONNX Attention"
# rtol as in the cases, whose 1e-7 for what is near 0 is below the last bit of float32.
NEAR = {torch.float32: 1e-6, torch.float16: 1e-2, torch.bfloat16: 1e-2}


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        found = cases("Attention", "attention", metafunc.config.run_seed)
        metafunc.parametrize("case", [pytest.param(case, id=name) for name, case in found.items()])


def test_there_are_93(request):
    assert len(cases("Attention", "attention", request.config.run_seed)) == 93


@every_backend
def test_case(case, backend, tally):
    call = translate(*case.inputs, **case.attributes)
    refused = call.refusals(backend)
    tally(SUITE, backend, refused)
    if refused:
        return
    for got, want in zip(call.run(backend), case.wanted, strict=False):
        if want is not None:
            torch.testing.assert_close(
                got.double(), want.double(), rtol=1e-3, atol=NEAR[want.dtype], msg=lambda told: f"{case.name}: {told}"
            )
