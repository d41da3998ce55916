"""Every backend of the library, held against the reference: each problem is a test of its own."""

import pytest
import torch

from multihead.attend import AUTOMATIC, BY_NAME, find
from multihead.native import load, why_none
from multihead.testing import BackendReport, CaseResult, Draw, check_backend, check_case, standard_cases
from multihead.testing.compare import moved

CASES = {case.name: case for case in standard_cases()}
BACKENDS = [backend.NAME for backend in (*AUTOMATIC, *BY_NAME)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_backend(backend, name, seed):
    if backend == "native" and load() is None:
        pytest.skip(str(why_none()))
    results = check_case(find(backend), CASES[name], seed=seed % 2**31)
    assert [str(result) for result in results if result.outcome == "failed"] == []
    if backend in ("tiled", "reference"):
        assert {result.outcome for result in results} == {"passed"}


def test_sdpa_refuses_what_its_kernels_cannot_and_nothing_else():
    report = check_backend("sdpa")
    refused = {result.case for result in report.of("refused") if result.mode in ("inference", "dropout")}
    expected = {name for name in CASES if name.startswith("dropout") or "softcap" in name or "no keys" in name}
    expected |= {name for name in CASES if name.startswith("sizes: no ")} | {"mask: poison behind it"}
    expected |= {name for name in CASES if any(kind in name for kind in ("sigmoid", "sparsemax", "entmax"))}
    assert refused == expected
    bias = {result.case for result in report.of("refused") if result.mode == "gradient to bias"}
    assert bias == {name for name, case in CASES.items() if case.build(Draw(0)).bias is not None}
    assert all(reason for result in report.of("refused") for reason in result.told)


def test_report_counts_and_prints():
    passed = CaseResult(case="plain", mode="inference", seed=3, outcome="passed")
    refused = CaseResult(case="softcap", mode="training", seed=3, outcome="refused", told=("no softcap",))
    report = BackendReport(backend="mine", results=(passed, refused))
    assert report.of("refused") == (refused,)
    assert str(report).splitlines() == [
        "mine: 1 passed, 1 refused, 0 failed",
        "  plain (inference, seed 3): passed",
        "  softcap (training, seed 3): refused; no softcap",
    ]


def test_own_problems_and_seeds():
    draw = Draw(5)
    problems = [CASES["softcap"].build(draw), CASES["bias: full"].build(draw)]
    report = check_backend("tiled", problems=problems, seeds=(1, 2))
    assert len(report.results) == 2 * (3 + 4)
    assert {result.seed for result in report.results} == {1, 2}
    assert {result.case for result in report.results} == {str(problem) for problem in problems}


@pytest.mark.parametrize("name", CASES)
def test_a_problem_is_moved_with_everything_in_it(name):
    problem = moved(CASES[name].build(Draw(0)), "meta")
    assert {x.device.type for x in (problem.q, problem.k, problem.v)} == {"meta"}
    if isinstance(problem.mask, torch.Tensor):
        assert problem.mask.device.type == "meta"
    if problem.bias is not None:
        assert (problem.bias if isinstance(problem.bias, torch.Tensor) else problem.bias.weight).device.type == "meta"
    if getattr(problem.normaliser, "sinks", None) is not None:
        assert problem.normaliser.sinks.device.type == "meta"


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    check_case(find("tiled"), CASES["dropout"])
    assert torch.equal(torch.rand(3), expected)
