"""FlexAttention as a backend: patterns as its block masks; on the CPU forward, plain, and compiled where it counts."""

import subprocess
import sys

import pytest
import torch

from attend.oracle import attend_slowly, full, near, qkv
from multihead.attend import attention, attention_lse, explain_backend
from multihead.attend.flex import BLOCK
from multihead.error import BackendRefused
from multihead.pattern import causal, document, from_callable, padding, per_head, sliding_window
from multihead.position import ALiBi, RelativeTable, alibi_slopes

LONG = 2 * BLOCK + 40
MASKS = {
    "window": lambda: sliding_window(50),
    "documents": lambda: causal() & document(torch.randint(0, 3, (2, LONG)).sort().values),
    "each head": lambda: per_head([causal(), sliding_window(9), causal() & ~sliding_window(30), sliding_window(200)]),
    "padding": lambda: padding(torch.rand(2, LONG) < 0.5),
    "function": lambda: from_callable(lambda q, k: (q * k) % 3 == 0),
    "tensor": lambda: torch.rand(2, 1, LONG, LONG) < torch.rand(LONG, 1),
}


@pytest.mark.parametrize("name", MASKS)
def test_tiles_passed_over_taken_and_looked_into(name):
    q, k, v = qkv(q_len=LONG, kv_len=LONG, v_head_dim=5)
    mask = MASKS[name]()
    got = attention_lse(q, k, v, mask=mask, backend="flex")
    want = attention_lse(q, k, v, mask=mask, backend="reference")
    assert got.backend == "flex"
    assert near(got.out, want.out)
    assert near(got.lse, want.lse)


def test_bias_of_each_kind_and_sinks():
    q, k, v = qkv(q_len=5, kv_len=9, heads=4)
    table = RelativeTable(torch.randn(8, 4))
    for bias in (torch.randn(5, 9), torch.randn(2, 4, 1, 9), ALiBi(alibi_slopes(4)), table):
        numbers = bias if isinstance(bias, torch.Tensor) else bias.scores(torch.arange(5) + 4, torch.arange(9))
        offset = None if isinstance(bias, torch.Tensor) else 4
        out, _, _ = attend_slowly(q, k, v, bias=full(numbers, 2, 4, 5, 9), softcap=2.0)
        assert near(attention(q, k, v, bias=bias, softcap=2.0, q_offset=offset, backend="flex"), out)


def test_it_runs_by_name_and_says_why_not():
    q, k, v = qkv()
    told = str(explain_backend(q, k, v, mask=torch.rand(6, 7) < 0.5))
    assert "flex" in told
    assert "only by name: FlexAttention's plain form, which stores every score" in told
    with pytest.raises(BackendRefused, match="no backward pass on the CPU"):
        attention(q.requires_grad_(), k, v, backend="flex")
    with pytest.raises(BackendRefused, match="no dropout"):
        attention(q.detach(), k, v, dropout=0.5, backend="flex")


COMPILED = """
import torch
from multihead.attend import Softmax, attention, flex, make_problem
from multihead.pattern import causal, sliding_window, document
from multihead.position import ALiBi, alibi_slopes
torch.set_num_threads(1)
q, k, v = torch.randn(2, 4, 300, 16), torch.randn(2, 2, 300, 16), torch.randn(2, 2, 300, 16)
ids = torch.randint(0, 3, (2, 300)).sort().values
for given in ({}, {"mask": causal()}, {"mask": sliding_window(40)}, {"mask": causal() & document(ids)},
              {"bias": ALiBi(alibi_slopes(4)), "softcap": 3.0}):
    problem = make_problem(q, k, v, **given)
    out = flex.compiled(problem)
    torch.testing.assert_close(out, attention(q, k, v, **given), rtol=1e-4, atol=1e-5)
print("five")
"""


@pytest.mark.slow  # a kernel is compiled for each: about a minute and a half
def test_five_problems_compiled_for_the_cpu():
    run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("five\n", 0), run.stderr[-2000:]
