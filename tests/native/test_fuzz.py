"""Random problems on every variant this processor runs, held against the reference in float64 by a derived bound.

300 in every run, other ones each time; `make fuzz` takes 20,000. A failure names its problem:
`random_problem(seed=...)` makes it again.
"""

import os
import random

import jaxtyping
import pytest
import torch

from built import needs_kernel
from multihead.attend import native
from multihead.native import load
from multihead.testing import random_problem
from native.judge import Verdict

PROBLEMS = 20_000 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 300
PARTS = 10
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


def check(seed):
    """What is wrong with one random problem, in words."""
    dice = random.Random(f"fuzz {seed}")
    dtype, poisoned = dice.choice(DTYPES), dice.random() < 0.25
    variant, threads = dice.choice(load().variants()), dice.randint(1, 8)
    problem = random_problem(seed, dtype=dtype, poisoned=poisoned)
    assert native.why_not(problem) == []
    with native.forced(variant=variant, threads=threads):
        out, lse = native.run(problem)
    faults = Verdict(problem, variant).faults(out, lse)
    made = f"random_problem(seed={seed}, dtype={dtype}, poisoned={poisoned}) on {variant.name}, {threads} threads"
    return [f"{made}: {fault}; {problem}" for fault in faults]


@pytest.fixture
def unchecked():
    """Without the checks of types that tests run with: they would take most of the time."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@needs_kernel
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("seed", "dtype"), [(315854752807799, torch.bfloat16), (315854752817690, torch.float16)])
def test_spans_in_float64_end_where_they_say(seed, dtype):
    # Keys at the very end of a span, of which a rounded span leaves another rest.
    problem = random_problem(seed, dtype=dtype, poisoned=False)
    assert problem.bias.spans.dtype == torch.float64
    for variant in load().variants():
        with native.forced(variant=variant, threads=1), torch.no_grad():
            assert Verdict(problem, variant).faults(*native.run(problem)) == []


@needs_kernel
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("part", range(PARTS))
def test_random_problems(part, request):
    first = request.config.run_seed * 100_000 + part * (PROBLEMS // PARTS)
    with torch.no_grad():
        wrong = [fault for seed in range(first, first + PROBLEMS // PARTS) for fault in check(seed)]
    assert wrong == []
