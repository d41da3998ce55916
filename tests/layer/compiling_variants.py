"""Run by test_variants_compiled.py in a process of its own: the modules of other kinds of attention in graphs."""

import torch

from multihead.layer import (
    DifferentialAttention,
    HeadGroup,
    Latent,
    LatentAttention,
    LayerLambda,
    LongformerAttention,
    Scoring,
    TalkingHeadsAttention,
    TokenLambda,
)
from multihead.pattern import causal
from multihead.position import Rotary

torch.set_num_threads(1)
SIZES = {"nope_dim": 6, "rope_dim": 4, "v_dim": 6}
LAYERS = {
    "absorbed": LatentAttention(12, 2, Latent(8, **SIZES, form="absorbed"), position=Rotary()),
    "auto": LatentAttention(12, 2, Latent(8, **SIZES, q_rank=5), position=Rotary(), scoring=Scoring(sinks=True)),
    "differential": DifferentialAttention(12, 2, kv_heads=1, head_dim=4, position=Rotary(), lambdas=LayerLambda()),
    "per token": DifferentialAttention(12, 2, lambdas=TokenLambda()),
    "talking": TalkingHeadsAttention(12, HeadGroup(2, kv_heads=1, scoring=Scoring(sinks=True))),
    "longformer": LongformerAttention(12, 2, window=4),
}


def main():
    for name, layer in LAYERS.items():
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape) * 0.5)
        frames, given = [], {"global_tokens": [0, 3]} if name == "longformer" else {}

        def keep(graph, _, frames=frames):
            frames.append(graph)
            return graph.forward

        compiled = torch.compile(layer, backend=keep, fullgraph=True, dynamic=True)
        for length in (5, 9):
            x = torch.randn(2, length, 12)
            torch.testing.assert_close(compiled(x, mask=causal(), **given), layer(x, mask=causal(), **given), msg=name)
        assert len(frames) == 1, f"{name}: {len(frames)} graphs for one kind of mask"
        x, pull = torch.randn(2, 7, 12), torch.randn(2, 7, 12)
        grads = []
        for each in (layer, compiled):
            layer.zero_grad()
            (each(x, mask=causal(), **given) * pull).sum().backward()
            grads.append([p.grad for p in layer.parameters()])
        torch.testing.assert_close(*grads, msg=name)


main()
