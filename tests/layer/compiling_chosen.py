"""Run by test_chosen_compiled.py in a process of its own: modules that choose their keys, compiled."""

import torch

from multihead.layer import LSHAttention, NativeSparseAttention, build_attention
from multihead.pattern import causal

torch.set_num_threads(1)
LAYERS = {
    "lsh": LSHAttention(12, 2),
    "native sparse": NativeSparseAttention(12, 2),
    "indexed": build_attention("indexed", 12, 2),
}


def main():
    for name, layer in LAYERS.items():
        layer.eval()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape) * 0.5)
        compiled = torch.compile(layer, backend="eager")
        for length in (9,):
            outs, x, pull = [], torch.randn(1, length, 12), torch.randn(1, length, 12)
            for each in (layer, compiled):
                torch.manual_seed(7)
                layer.zero_grad()
                out = each(x, mask=causal())
                (out * pull).sum().backward()
                outs.append([out.detach(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
            torch.testing.assert_close(*outs, msg=name)


if __name__ == "__main__":
    main()
