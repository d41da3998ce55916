"""Run by test_mixtures.py in a process of its own: mixtures of heads in graphs."""

import sys

import torch

from multihead.layer import HeadGroup, MoAAttention, MoHAttention, Router, SwitchHeadAttention
from multihead.pattern import causal
from multihead.position import Rotary

torch.set_num_threads(1)
LAYERS = {
    "heads": MoHAttention(12, HeadGroup(4, 4, kv_heads=2, position=Rotary()), shared=1, chosen=2),
    "switch": SwitchHeadAttention(12, HeadGroup(2, 4, position=Rotary()), experts=3, chosen=2),
    "attention": MoAAttention(12, HeadGroup(2, 4, kv_heads=1, position=Rotary()), experts=3, chosen=2),
}


def main(backend):
    for name, layer in LAYERS.items():
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape) * 0.5)
        graphs = []
        run = torch._dynamo.backends.registry.lookup_backend(backend)

        def keep(graph, inputs, graphs=graphs, run=run):
            graphs.append(graph)
            return run(graph, inputs)

        compiled = torch.compile(layer, backend=keep, fullgraph=True, dynamic=True)
        for length in (5, 9):
            grads, x, pull = [], torch.randn(2, length, 12), torch.randn(2, length, 12)
            for each in (layer, compiled):
                layer.zero_grad()
                out = each(x, mask=causal())
                loads = [one.load_loss() for one in layer.modules() if isinstance(one, Router)]
                ((out * pull).sum() + sum(loads)).backward()
                grads.append([out, *loads, *(p.grad for p in layer.parameters())])
            torch.testing.assert_close(*grads, msg=name)
        if backend == "eager":
            assert len(graphs) == 1, f"{name}: {len(graphs)} graphs for one kind of mask"
            continue
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(compiled(x, mask=causal()), layer(x, mask=causal()), msg=name)


main(sys.argv[1])
