"""Run by test_prune.py in a process of its own: a module that is pruned and restored after it was compiled."""

import torch
from torch import nn

from multihead.hooks import prune_heads
from multihead.layer import MultiHeadAttention
from multihead.pattern import causal

torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = MultiHeadAttention(16, 8, kv_heads=4)

    def forward(self, x):
        return self.attn(x, mask=causal())


model, x = Model().eval(), torch.randn(2, 5, 16)
compiled = torch.compile(model, backend="eager", fullgraph=True)
with torch.no_grad():
    before = model(x)
    torch.testing.assert_close(compiled(x), before)
    pruned = prune_heads(model, ["L0.H0", "L0.H1"])
    want = model(x)
    assert not torch.allclose(want, before)
    torch.testing.assert_close(compiled(x), want)
    pruned.restore()
    assert torch.equal(model(x), before)
    torch.testing.assert_close(compiled(x), before)
