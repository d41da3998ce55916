"""Run by test_compiled.py in a process of its own: modules in graphs."""

import torch
from torch import nn

from multihead.layer import HeadGroup, MultiHeadAttention, OutputGate, QKNorm, Scoring
from multihead.pattern import causal, padding, sliding_window

torch.set_num_threads(1)
GROUPS = [
    HeadGroup(2, 6, kv_heads=1, scoring=Scoring(norm=QKNorm(), sinks=True), gate=OutputGate()),
    HeadGroup(2, 4, mask=sliding_window(3)),
]


class Causal(nn.Module):
    """A model around it, as torch.export wants one."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(12, GROUPS)

    def forward(self, x):
        return self.attention(x, mask=causal())


def main():
    model = Causal()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    frames = []
    compiled = torch.compile(
        model.attention, backend=lambda graph, _: frames.append(graph) or graph.forward, fullgraph=True, dynamic=True
    )
    for length in (5, 9, 14):
        x = torch.randn(2, length, 12)
        masks = None, causal(), causal() & padding(torch.arange(length) < torch.tensor([[length], [0]]))
        for mask in masks[: 3 if length == 5 else 2]:
            torch.testing.assert_close(compiled(x, mask=mask), model.attention(x, mask=mask))
    assert len(frames) == 3, f"{len(frames)} graphs for three kinds of mask"
    exported = torch.export.export(model, (torch.randn(2, 8, 12),), dynamic_shapes={"x": {1: torch.export.Dim("n")}})
    called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert called.count("multihead.attention.default") == len(GROUPS), called
    x = torch.randn(2, 11, 12)
    torch.testing.assert_close(exported.module()(x), model(x))


main()
