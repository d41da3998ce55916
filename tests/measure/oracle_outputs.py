"""What heads write, the slow and obvious way: norms, rank, likeness of outputs; apart from the code it judges."""

import math

import numpy as np

from measure.oracle import Sums


def written_of(output, rows):
    """Effective ranks and HSIC of the outputs (q_len, heads, width) over some rows, in blocks of 512 and 256."""
    heads = output.shape[1]
    sums = Sums()
    sums.add("effective_rank", 0.0, 0.0, shape=(heads,))
    sums.add("cka", 0.0, 0.0, shape=(heads, heads))
    for block in _blocks(output, rows, 512):
        for h in range(heads):
            values = np.linalg.svd(block[:, h], compute_uv=False) if len(block) else np.zeros(1)
            if values.sum() > 0:
                share = values / values.sum()
                sums.add("effective_rank", math.exp(-sum(p * math.log(p) for p in share if p > 0)), place=h)
    for block in _blocks(output, rows, 256):
        if len(block) >= 4:
            for h in range(heads):
                for g in range(heads):
                    sums.add("cka", hsic(block[:, h] @ block[:, h].T, block[:, g] @ block[:, g].T), place=(h, g))
    return sums.found


def _blocks(output, rows, size):
    """Blocks of rows, a last one of fewer than 64 with the one before."""
    length = len(output)
    starts = [s for s in range(0, length, size) if s == 0 or length - s >= 64]
    return [
        output[[i for i in rows if start <= i < stop]]
        for start, stop in zip(starts, [*starts[1:], length], strict=True)
    ]


def hsic(k, m):
    """The unbiased estimate, as Song et al. 2012 write it."""
    n = len(k)
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    one = np.ones(n)
    inner = np.trace(k @ m) + one @ k @ one * (one @ m @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ k @ m @ one)
    return inner / (n * (n - 3))


def outputs_of(output, weight, residual, rows):
    """Output statistics of one row of a batch: output (q_len, heads, width), weight (d, heads * width)."""
    heads, width = output.shape[1:]
    norms = np.zeros((heads, len(rows)))
    for h in range(heads):
        for r, i in enumerate(rows):
            norms[h, r] = np.linalg.norm(weight[:, h * width : (h + 1) * width] @ output[i, h])
    found = {
        "output_norm": (norms.sum(1), np.full(heads, float(len(rows)))),
        "output_ratio": (norms.sum(1), np.full(heads, norms.mean(0).sum())),
    }
    if residual is not None:
        lengths = np.array([np.linalg.norm(residual[i]) for i in rows])
        found["output_share"] = ((norms / lengths).sum(1), np.full(heads, float(len(rows))))
    return found
