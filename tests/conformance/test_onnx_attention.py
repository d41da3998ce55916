"""The 93 cases of the Attention operator that come with onnx 1.23.2, on every backend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from built import needs_kernel
from conformance.onnx_attention import translate
from conformance.onnx_cases import cases

SUITE = "ONNX Attention"
# rtol as in the cases, whose 1e-7 for what is near 0 is below the last bit of float32.
NEAR = {torch.float32: 1e-6, torch.float16: 1e-2, torch.bfloat16: 1e-2}


# What FlexAttention runs in every run of the tests, as its others take half a minute.
FLEX = {
    f"test_attention_{name}"
    for name in (
        "3d_causal_bf16",
        "4d_attn_mask_4d_causal",
        "4d_causal_nonpad_negative_offset_structural_empty",
        "4d_diff_heads_with_past_and_present_mask4d",
        "4d_softcap_neginf_mask_poison",
        "local_window_gqa_rank4_mask",
    )
}


COMPILED = ("4d_causal", "4d_gqa_attn_mask", "4d_softcap", "local_window", "4d_diff_heads_sizes")
HERE = Path(__file__).parent


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        found = cases("Attention", "attention", metafunc.config.run_seed)
        runs = [
            (name, backend) for name in found for backend in ("auto", "native", "sdpa", "tiled", "reference", "flex")
        ]
        marks = {"native": [needs_kernel], "flex": [pytest.mark.slow]}
        metafunc.parametrize(
            ("case", "backend"),
            [
                pytest.param(
                    found[name],
                    backend,
                    id=f"{name}-{backend}",
                    marks=[] if backend == "flex" and name in FLEX else marks.get(backend, []),
                )
                for name, backend in runs
            ],
        )


def test_there_are_93(request):
    assert len(cases("Attention", "attention", request.config.run_seed)) == 93


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


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["flex"])
def test_compiled(backend, request, tally):
    """Each takes half a minute to compile."""
    names = [f"test_attention_{name}" for name in COMPILED]
    for _ in names:
        tally(f"{SUITE}, compiled", backend)
    path = {"PYTHONPATH": os.pathsep.join(map(str, (HERE.parent, HERE.parents[1] / "src")))}
    script = [sys.executable, str(HERE / "compiling.py"), str(request.config.run_seed), *names]
    run = subprocess.run(script, capture_output=True, text=True, check=False, env=os.environ | path)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")
