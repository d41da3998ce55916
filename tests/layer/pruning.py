"""Run by test_prune.py in a process of its own: pruned modules in graphs."""

import torch
from torch import nn

from multihead.hooks import prune_heads
from multihead.layer import HeadGroup, MultiHeadAttention
from multihead.pattern import causal, sliding_window

torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = MultiHeadAttention(16, [HeadGroup(8, 4, kv_heads=4), HeadGroup(2, 8, mask=sliding_window(3))])

    def forward(self, x):
        return self.attn(x, mask=causal())


model, x = Model().eval(), torch.randn(2, 5, 16)
compiled = torch.compile(model, backend="eager", fullgraph=True)
with torch.no_grad():
    before = model(x)
    torch.testing.assert_close(compiled(x), before)
    pruned = prune_heads(model, ["L0.H0", "L0.H1", "L0.H9"])
    want = model(x)
    assert not torch.allclose(want, before)
    torch.testing.assert_close(compiled(x), want)
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), want)
    pruned.restore()
    assert torch.equal(model(x), before)
    torch.testing.assert_close(compiled(x), before)
