"""Run by test_linear_compiled.py in a process of its own: scans, and modules of linear heads, in graphs."""

import sys

import torch

from multihead.layer import (
    GatedDeltaNet,
    GatedLinearAttention,
    HeadGroup,
    LinearAttention,
    LinearScoring,
    MultiHeadAttention,
)
from multihead.pattern import causal
from multihead.scan import Favor, delta_rule, linear_attention

torch.set_num_threads(1)
PERFORMER = LinearScoring(features=Favor(features=7))
LAYERS = {
    "linear": LinearAttention(12, 2),
    "retnet": LinearAttention.retnet(12, 2),
    "gated": GatedLinearAttention(12, 2),
    "delta": GatedDeltaNet(12, 2),
    "mixed": MultiHeadAttention(12, [HeadGroup(2, 4), HeadGroup(2, 4, scoring=PERFORMER)]),
}


def scans(q, k, v, log_decay, beta):
    made = linear_attention(q, k, v, log_decay=log_decay)
    step = linear_attention(q[:, :, :1], k[:, :, :1], v[:, :, :1], state=made.state)
    unit = torch.nn.functional.normalize(k, dim=-1)
    return made.out, step.out, made.state.memory, delta_rule(q, unit, v, beta, log_decay=log_decay).out


def main(names):
    q, k, v = (torch.rand(1, 2, 70, 4) for _ in range(3))
    given = (q, k, v, -torch.rand(1, 2, 70), torch.rand(1, 2, 70))
    compiled = torch.compile(scans, fullgraph=True, backend="eager")
    for got, want in zip(compiled(*given), scans(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for name in names or LAYERS:
        layer = LAYERS[name]
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        x = torch.randn(1, 9, 12, requires_grad=True)
        got, want = (one(x, mask=causal()) for one in (compiled, layer))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=name)
        torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (got, want)))
    torch.compiler.reset()  # what is compiled above counts towards the limit of a function
    for name in names or ("linear", "delta"):
        layer = LAYERS[name]
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
        for length in (40, 64, 130):  # less than a chunk, whole chunks, and some over
            x = torch.randn(1, length, 12)
            got, want = (one(x, mask=causal()) for one in (compiled, layer))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=f"{name}, {length}")


if __name__ == "__main__":
    main(sys.argv[1:])
