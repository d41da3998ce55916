"""Run in a process of its own by test_every_pattern.py: every pattern without tensors in a whole graph."""

import sys

import torch

from multihead.attend import attention
from multihead.pattern import (
    bigbird,
    block_band,
    causal,
    chunk,
    dilated,
    every,
    fixed,
    global_blocks,
    grid_window,
    keys_every,
    longformer,
    neighbourhood,
    prefix,
    random_blocks,
    random_pairs,
    strided,
)

torch.set_num_threads(1)
BACKEND = sys.argv[1]
PATTERNS = [
    causal() & chunk(4),
    block_band(4, 1, 1) | global_blocks(4, [0]),
    dilated(3, 2),
    every(3) & causal(),
    ~keys_every(5, 1, 2),
    strided(4),
    strided(4, heads=4),
    fixed(5, 2, heads=4),
    longformer(4, [0, 3]),
    bigbird(2, 1, length=21, seed=3),
    bigbird(2, 1, length=21, seed=3, heads=4),
    causal() & random_blocks(2, 2, seed=1),
    neighbourhood(4, 5, 3),
    grid_window(4, 5, 3, dilation=2),
    random_pairs(0.5, seed=2),
    prefix(9).at(q_offset=4, k_offset=4) & chunk(8).at(k_offset=3),
]


def counting(graphs):
    def count(graph, _):
        graphs.append(graph)
        return graph

    return count


def given(length):
    return torch.randn(1, 4, length, 8), torch.randn(1, 2, length, 8), torch.randn(1, 2, length, 8)


for pattern in PATTERNS:
    torch.compiler.reset()
    graphs = []

    def run(q, k, v, pattern=pattern):
        return attention(q * 2, k, v, mask=pattern, backend=BACKEND) + 1

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=counting(graphs))
    for length in (17, 21):
        inputs = given(length)
        assert torch.equal(compiled(*inputs), run(*inputs)), (str(pattern), length)
    assert len(graphs) == 1, (str(pattern), len(graphs))
    assert any("multihead.attention" in str(node.target) for node in graphs[0].graph.nodes), str(pattern)

# Made in the graph, and one graph wherever a cache begins.
torch.compiler.reset()
graphs = []


def cached(q, k, v, mask):
    return attention(q, k, v, mask=mask & dilated(4, 2) & chunk(16), q_offset=0, backend=BACKEND)


compiled = torch.compile(cached, fullgraph=True, dynamic=True, backend=counting(graphs))
for first in (3, 4, 5, 9):
    mask = prefix(7).at(q_offset=first, k_offset=first)
    inputs = given(12)
    assert torch.equal(compiled(*inputs, mask), cached(*inputs, mask)), first
assert len(graphs) <= 2, len(graphs)
