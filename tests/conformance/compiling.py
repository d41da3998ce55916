"""Run in a process of its own by test_onnx_attention.py: cases through FlexAttention compiled for the CPU.

Compiled there it gives no log-sum-exp, so the backend itself runs its plain form; what it hands over is the same.
"""

import sys

import torch
from torch.nn.attention.flex_attention import flex_attention

from conformance.onnx_attention import translate
from conformance.onnx_cases import cases
from multihead.attend import flex, make_problem

torch.set_num_threads(1)
seed, *names = sys.argv[1:]
found = cases("Attention", "attention", int(seed))
compiled = torch.compile(flex_attention, dynamic=False)
for name in names:
    call = translate(*found[name].inputs, **found[name].attributes)
    problem = make_problem(call.q, call.k, call.v, **call.options)
    with torch.no_grad():
        out = compiled(**flex.arguments(problem))[..., : problem.v_head_dim]
    out = out.transpose(1, 2).flatten(2) if call.flat else out
    torch.testing.assert_close(out, found[name].wanted[0], rtol=1e-3, atol=1e-5)
