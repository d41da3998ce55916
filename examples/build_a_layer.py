"""Build with patterns: a causal layer with a window, eight query heads on two key/value heads."""

import torch

import multihead as mh


def main():
    torch.manual_seed(0)
    layer = mh.MultiHeadAttention(64, heads=8, kv_heads=2)
    pattern = mh.causal() & mh.sliding_window(16)
    x = torch.randn(2, 100, 64)
    print(layer(x, mask=pattern).shape)

    q, k, v = (torch.randn(1, 8, 100, 8) for _ in range(3))
    print(mh.explain_backend(q, k, v, mask=pattern))
    seen = mh.attention_lse(q, k, v, mask=pattern)
    print("row 99 of head 3 sees", int((seen.weights(rows=slice(99, 100))[0, 3] > 0).sum()), "keys")
    print(pattern.why(99, 2))


if __name__ == "__main__":
    main()
