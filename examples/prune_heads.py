"""Which heads does a loss need? One backward pass through a gate for each, then the least needed are taken out."""

import torch

import multihead as mh


def main():
    layer = mh.MultiHeadAttention(64, heads=8)
    with torch.no_grad():
        layer.out_proj.weight[:, 16:24] = 0  # head 2 writes nothing
    x = torch.randn(4, 50, 64)

    gate = mh.HeadGate(layer)
    with gate.acting():
        layer(x, mask=mh.causal()).square().mean().backward()
    importance = gate.layers["L0"].grad.abs()
    least = int(importance.argmin())
    print("least needed: head", least)

    before = layer(x, mask=mh.causal())
    pruned = mh.prune_heads(layer, [least])
    print(layer.heads, "heads left, q_proj is", tuple(layer.q_proj.weight.shape))
    print("the answer moved by", f"{float((layer(x, mask=mh.causal()) - before).abs().max().detach()):.1e}")
    pruned.restore()
    print(layer.heads, "heads again")


if __name__ == "__main__":
    main()
