"""Heads of two kinds in one decoder layer, a prompt in one pass, then token by token, and a step taken back."""

import torch

import multihead as mh


def main():
    layer = mh.MultiHeadAttention(
        64,
        [
            mh.HeadGroup(2, 16, position=mh.Rotary()),
            mh.HeadGroup(4, 8, mask=mh.sliding_window(8), position=mh.Rotary()),
        ],
    ).eval()
    x = torch.randn(1, 40, 64)
    with torch.no_grad():
        cache = layer.cache(batch=1)
        parts = [layer(x[:, :30], mask=mh.causal(), cache=cache)]
        for token in range(30, 40):
            layer(torch.randn(1, 1, 64), mask=mh.causal(), cache=cache)  # a guess
            cache.cut(token)  # which is taken back
            parts.append(layer(x[:, token : token + 1], mask=mh.causal(), cache=cache))
        whole = layer(x, mask=mh.causal())
    print("largest difference from one pass:", f"{float((torch.cat(parts, 1) - whole).abs().max()):.1e}")
    print("tokens:", cache.length, "bytes held:", cache.nbytes)


if __name__ == "__main__":
    main()
