"""The same result, bit for bit, for any number of threads."""

import pytest
import torch

from built import every_variant, needs_kernel
from multihead.attend import Softmax, make_problem, native
from multihead.native import Variant, load
from multihead.pattern import causal, prefix, sliding_window
from multihead.position import ALiBi, alibi_slopes
from multihead.testing import random_problem

PROBLEMS = {
    "full": lambda q, k, v: make_problem(q(8, 300), k(300), v(300)),
    "causal": lambda q, k, v: make_problem(q(8, 517), k(517), v(517), mask=causal()),
    "window": lambda q, k, v: make_problem(q(2, 900), k(900), v(900), mask=sliding_window(70)),
    "map": lambda q, k, v: make_problem(q(2, 300), k(300), v(300), mask=prefix(33)),
    "decode": lambda q, k, v: make_problem(q(2, 1), k(9000), v(9000), mask=causal(), q_offset=8999),
    "few queries": lambda q, k, v: make_problem(q(4, 3), k(5000), v(5000), bias=ALiBi(alibi_slopes(4)), q_offset=4997),
    "one head": lambda q, k, v: make_problem(q(1, 600), k(600)[:, :1], v(600)[:, :1], softcap=9.0),
    "sinks": lambda q, k, v: make_problem(q(4, 65), k(130), v(130), normaliser=Softmax(sinks=torch.randn(4))),
}


def made(name, dtype):
    def shaped(dim):
        return lambda length: torch.randn(1, 2, length, dim).to(dtype)

    return PROBLEMS[name](lambda heads, length: torch.randn(1, heads, length, 40).to(dtype), shaped(40), shaped(24))


def results(problem, variant):
    found = []
    for threads in range(1, 9):
        with native.forced(variant=variant, threads=threads):
            found.append(native.run(problem))
    return found


def same(found):
    return all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for one in found
        for a, b in zip(one, found[0], strict=True)
    )


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_one_to_eight_threads(name, dtype, variant):
    assert same(results(made(name, dtype), Variant[variant.upper()]))


@needs_kernel
def test_one_to_eight_threads_on_random_problems(seed):
    for place in range(40):
        problem = random_problem(
            seed + place, dtype=(torch.float32, torch.bfloat16)[place % 2], poisoned=place % 4 == 0
        )
        for variant in load().variants():
            found = [(out.contiguous(), lse) for out, lse in results(problem, variant)]
            assert same(found), f"random_problem({seed + place}) on {variant.name}: {problem}"


@needs_kernel
def test_a_row_does_not_depend_on_its_neighbours():
    """Cut out of the call, at its position, a query gets the same numbers."""
    problem = make_problem(torch.randn(1, 4, 200, 32), *torch.randn(2, 1, 2, 200, 32), mask=causal())
    whole, lse = native.run(problem)
    part, part_lse = native.run(make_problem(problem.q[:, :, 60:160], problem.k, problem.v, mask=causal(), q_offset=60))
    assert torch.equal(whole[:, :, 60:160], part)
    assert torch.equal(lse[:, :, 60:160], part_lse)
