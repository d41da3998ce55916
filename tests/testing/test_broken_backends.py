"""Backends that are wrong in one way each: `check_backend` must see it, and say what it saw."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch

from multihead.attend import Problem, Softmax, define, tiled
from multihead.pattern import Pattern
from multihead.position import ALiBi
from multihead.testing import Case, Draw, check_backend, check_case, standard_cases

CASES = {case.name: case for case in standard_cases()}


@dataclass
class Broken:
    """The reference with something wrong."""

    fault: Callable[[Problem], tuple]
    NAME: str = "broken"
    TOLERANCE: dict = field(default_factory=lambda: dict(tiled.TOLERANCE))

    def why_not(self, problem):
        return []

    def how(self, problem):
        return "wrongly"

    def run(self, problem):
        return self.fault(problem)


def right(problem):
    return define(problem)[:2]


def no_mask(p):
    return right(replace(p, mask=None))


def causal_off_by_one(p):
    return right(replace(p, q_offset=(p.q_offset or 0) + 1) if isinstance(p.mask, Pattern) else p)


def no_offset(p):
    return right(replace(p, q_offset=0))


def scale_of_the_values(p):
    return right(replace(p, scale=p.v_head_dim**-0.5))


def no_bias(p):
    return right(replace(p, bias=None))


def bias_without_gradient(p):
    bias = p.bias.detach() if isinstance(p.bias, torch.Tensor) else p.bias
    bias = ALiBi(bias.slopes.detach()) if isinstance(bias, ALiBi) else bias
    return right(replace(p, bias=bias))


def softcap_after_the_bias(p):
    if p.softcap is None or not isinstance(p.bias, torch.Tensor):
        return right(p)
    raw = p.q @ p.k.repeat_interleave(p.group, 1).mT * p.scale + p.bias
    capped = (p.softcap * torch.tanh(raw / p.softcap)).masked_fill(~p.allowed(), -torch.inf)
    return right(replace(p, q=torch.zeros_like(p.q), softcap=None, bias=capped))


def heads_in_turn(p):
    """Query head h reads kv head h % kv_heads."""
    order = torch.arange(p.heads) % max(p.kv_heads, 1)
    return right(replace(p, k=p.k[:, order], v=p.v[:, order]))


def sink_left_out_of_lse(p):
    plain = isinstance(p.normaliser, Softmax)
    return right(p)[0], right(replace(p, normaliser=Softmax()) if plain else p)[1]


def lse_without_gradient(p):
    out, lse = right(p)
    return out, None if lse is None else lse.detach()


def lse_with_half_a_gradient(p):
    out, lse = right(p)
    return out, None if lse is None else lse.detach() / 2 + lse / 2


def lse_zero_in_empty_rows(p):
    out, lse = right(p)
    return out, None if lse is None else lse.masked_fill(lse.isneginf(), 0.0)


def nan_in_empty_rows(p):
    out, lse = right(p)
    return out if lse is None else out.masked_fill(lse.isneginf()[..., None], torch.nan), lse


def mean_in_empty_rows(p):
    out, lse = right(p)
    mean = p.v.mean(2, keepdim=True).repeat_interleave(p.group, 1)
    return out if lse is None or p.kv_len == 0 else torch.where(lse.isneginf()[..., None], mean, out), lse


def scores_in_low_precision(p):
    """The product of q and k rounded before the softmax."""
    raw = (p.q @ p.k.repeat_interleave(p.group, 1).mT * p.scale).float()
    return right(replace(p, q=torch.zeros_like(p.q), bias=raw)) if p.bias is None and p.softcap is None else right(p)


def float32_output(p):
    out, lse = right(p)
    return out.float(), lse


def writes_to_its_inputs(p):
    with torch.no_grad():
        p.q.mul_(p.scale)
    return right(replace(p, scale=1.0))


def dropout_everywhere_alike(p):
    """One row of keys is dropped for all queries."""
    keep = (torch.rand(p.kv_len) >= p.dropout).expand(p.batch, p.heads, p.q_len, p.kv_len)
    return define(p, keep)[:2]


def dropout_of_twice_the_share(p):
    keep = torch.rand(p.batch, p.heads, p.q_len, p.kv_len) >= 2 * p.dropout
    return define(p, keep)[:2]


def dropout_without_rescaling(p):
    out, lse = right(p)
    return out * (1 - p.dropout), lse


def dropout_off(p):
    return right(replace(p, dropout=0.0))


def dropout_with_a_fixed_seed(p):
    generator = torch.Generator().manual_seed(1)
    keep = torch.rand(p.batch, p.heads, p.q_len, p.kv_len, generator=generator) >= p.dropout
    return define(p, keep)[:2]


class DropsAnew(torch.autograd.Function):
    """Other weights in the backward pass than in the forward pass."""

    @staticmethod
    def forward(ctx, problem, q, k, v):
        ctx.problem = problem
        ctx.save_for_backward(q, k, v)
        return define(problem)[0]

    @staticmethod
    def backward(ctx, grad):
        q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            out = define(replace(ctx.problem, q=q, k=k, v=v))[0]
        return None, *torch.autograd.grad(out, (q, k, v), grad)


def dropout_anew_in_the_backward_pass(p):
    return DropsAnew.apply(p, p.q, p.k, p.v), define(p)[1]


FAULTS = [
    (no_mask, "mask: two dimensions", "output is off by"),
    (causal_off_by_one, "pattern: causal", "output is off by"),
    (no_offset, "pattern: causal after a cache", "output is off by"),
    (scale_of_the_values, "sizes: larger values", "output is off by"),
    (no_bias, "bias: ALiBi", "output is off by"),
    (bias_without_gradient, "bias: full", "gradient of bias is off by"),
    (bias_without_gradient, "bias: ALiBi", "gradient of bias is off by"),
    (softcap_after_the_bias, "softcap: bias and mask after it", "output is off by"),
    (heads_in_turn, "sizes: plain", "output is off by"),
    (sink_left_out_of_lse, "normaliser: sinks", "log-sum-exp is off by"),
    (lse_without_gradient, "sizes: plain", "the log-sum-exp has no gradient and does not say so"),
    (lse_with_half_a_gradient, "sizes: plain", "gradient of q is off by"),
    (lse_zero_in_empty_rows, "mask: two dimensions", "log-sum-exp has 0 infinities"),
    (nan_in_empty_rows, "mask: two dimensions", "output has NaN at"),
    (mean_in_empty_rows, "mask: nothing", "output is off by"),
    (scores_in_low_precision, "bfloat16: large scores", "output is off by"),
    (float32_output, "bfloat16: plain", "output is torch.float32"),
    (writes_to_its_inputs, "sizes: plain", "q was written to"),
    (dropout_everywhere_alike, "dropout", "drop exactly the same keys"),
    (dropout_of_twice_the_share, "dropout", "dropout keeps a share of"),
    (dropout_without_rescaling, "dropout", "weights with dropout is off by"),
    (dropout_off, "dropout", "another seed drops the same weights"),
    (dropout_with_a_fixed_seed, "dropout", "another seed drops the same weights"),
    (dropout_anew_in_the_backward_pass, "dropout", "gradient of q is off by"),
]


@pytest.mark.parametrize(("fault", "name", "told"), FAULTS, ids=[f"{f.__name__}-{n}" for f, n, _ in FAULTS])
def test_a_fault_is_caught(fault, name, told, seed):
    # At one seed in hundreds rounding is no worse than it may be: a fault is caught by one of three.
    tries = ((seed + k) % 2**31 for k in range(3))
    results = (result for one in tries for result in check_case(Broken(fault), CASES[name], seed=one))
    assert any(told in why for result in results if result.outcome == "failed" for why in result.told), seed
    sound = check_case(Broken(right), CASES[name], seed=seed % 2**31)
    assert {result.outcome for result in sound} == {"passed"}


def test_failures_are_raised_with_the_first_of_them():
    problems = [CASES[name].build(Draw(0)) for name in list(CASES)[:8]]
    with pytest.raises(AssertionError) as raised:
        check_backend(Broken(scale_of_the_values_plus), problems=problems)
    lines = str(raised.value).splitlines()
    assert lines[0] == "broken: 24 of 24 failed, the first are"
    assert len(lines) == 6
    assert "output is off by" in lines[1]


def scale_of_the_values_plus(p):
    return right(replace(p, scale=p.scale + 1))


def test_a_backend_that_raises_has_failed():
    def raises(problem):
        raise RuntimeError("no kernel image")

    (result, *_) = check_case(Broken(raises), CASES["sizes: plain"])
    assert (result.outcome, result.told) == ("failed", ("RuntimeError: no kernel image",))


def test_a_backend_that_refuses_everything_has_failed():
    class Refuses(Broken):
        def why_not(self, problem):
            return ["not today"]

    with pytest.raises(AssertionError, match=r"broken ran none of .* problems:(.|\n)*not today"):
        check_backend(Refuses(right))


def test_a_dtype_without_tolerance_is_refused():
    backend = Broken(right, TOLERANCE={torch.float32: 1e-5})
    (result, *_) = check_case(backend, CASES["bfloat16: plain"])
    assert (result.outcome, result.told) == ("refused", ("no tolerance is given for torch.bfloat16",))


def test_an_error_that_names_another_backend_for_the_gradient_of_lse_is_a_refusal():
    from multihead.attend.fused_cuda import _Detached

    def detached(p):
        out, lse = right(p)
        return out, _Detached.apply(lse, p.q, p.k, p.v)

    results = {result.mode: result for result in check_case(Broken(detached), CASES["sizes: plain"])}
    assert results["training"].outcome == "passed"
    assert results["gradient of lse"].outcome == "refused"
    assert 'backend="tiled"' in results["gradient of lse"].told[0]


def test_a_case_of_your_own():
    case = Case(name="mine", build=CASES["sizes: plain"].build)
    assert {result.case for result in check_case(tiled, case)} == {"mine"}
