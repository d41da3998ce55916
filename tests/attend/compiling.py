"""Run in a process of its own by test_compiled.py: what torch.compile changes is not undone.

Every call is traced whole, with sizes that may change, and gives what it gives without a graph.
"""

import sys

import torch

from multihead import ALiBi, RelativeTable, alibi_slopes
from multihead.attend import Entmax, Sigmoid, Softmax, Sparsemax, attention, attention_lse
from multihead.pattern import (
    band,
    causal,
    document,
    everything,
    global_tokens,
    keys_at,
    nothing,
    padding,
    pairs,
    per_head,
    prefix,
    same_token,
    sliding_window,
)

torch.set_num_threads(1)
BACKEND = sys.argv[1]
KEEP, IDS = torch.rand(2, 40) < 0.7, torch.arange(60) // 7
HELD = causal() & padding(KEEP) & document(IDS)
MAPPED = causal() & (sliding_window(3) | keys_at([0])) | same_token(IDS)
PAIRED, SHIFTED, OUTSIDE = pairs([(1, 2), (3, 0)]) | prefix(3), causal().at(q_offset=2), ~document(IDS)
GLOBAL = band(2, 1) | global_tokens([0, 5])
BY_HEAD = per_head([causal(), everything(), nothing(), band(2, 3)])
MASK, BIAS, SINKS = torch.rand(2, 1, 1, 1) < 0.5, torch.randn(1, 4, 1, 1), torch.randn(4)
SLOPES, TABLE = ALiBi(alibi_slopes(4)), RelativeTable(torch.randn(8, 4))

CALLS = {
    "plain": lambda q, k, v, keep: attention(q, k, v, backend=BACKEND),
    "causal": lambda q, k, v, keep: attention(q, k, v, mask=causal(), backend=BACKEND),
    "held": lambda q, k, v, keep: attention(q, k, v, mask=HELD, backend=BACKEND),
    "mapped": lambda q, k, v, keep: attention(q, k, v, mask=MAPPED, backend=BACKEND),
    "paired": lambda q, k, v, keep: attention(q, k, v, mask=PAIRED, backend=BACKEND),
    "global": lambda q, k, v, keep: attention(q, k, v, mask=GLOBAL, backend=BACKEND),
    "shifted": lambda q, k, v, keep: attention(q, k, v, mask=SHIFTED, backend=BACKEND),
    "outside": lambda q, k, v, keep: attention(q, k, v, mask=OUTSIDE, backend=BACKEND),
    "by head": lambda q, k, v, keep: attention(q, k, v, mask=BY_HEAD, backend=BACKEND),
    "made in the graph": lambda q, k, v, keep: attention(
        q, k, v, mask=causal() & padding(keep) & sliding_window(9), backend=BACKEND
    ),
    "tensor": lambda q, k, v, keep: attention(q, k, v, mask=MASK, bias=BIAS, scale=0.2, softcap=3.0, backend=BACKEND),
    "keys": lambda q, k, v, keep: attention(q, k, v, mask=keep[:, None, None], backend=BACKEND),
    "alibi": lambda q, k, v, keep: attention(q, k, v, mask=causal(), bias=SLOPES, backend=BACKEND),
    "table": lambda q, k, v, keep: attention(q, k, v, bias=TABLE, backend=BACKEND),
    "sinks": lambda q, k, v, keep: attention(
        q, k, v, normaliser=Softmax(sinks=SINKS, off_by_one=True), backend=BACKEND
    ),
    "decoding": lambda q, k, v, keep: attention(
        q[:, :, -1:], k, v, mask=causal(), q_offset=k.shape[2] - 1, backend=BACKEND
    ),
}
OTHERS = {
    "sigmoid": lambda q, k, v, keep: attention(q, k, v, normaliser=Sigmoid(-1.0)),
    "entmax": lambda q, k, v, keep: attention(q, k, v, normaliser=Entmax()),
    "sparsemax": lambda q, k, v, keep: attention(q, k, v, normaliser=Sparsemax()),
}


def given(length, keys=None):
    keys = keys or length
    return (
        torch.randn(2, 4, length, 8),
        torch.randn(2, 2, keys, 8),
        torch.randn(2, 2, keys, 8),
        torch.rand(2, keys) < 0.8,
    )


def counting(graphs):
    def count(graph, _):
        graphs.append(graph)
        return graph

    return count


for name, call in (CALLS | OTHERS).items():
    torch.compiler.reset()
    graphs = []

    def run(q, k, v, keep, call=call):
        return call(q * 2, k, v, keep) + 1

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=counting(graphs))
    for length in (16, 16, 13, 21):
        inputs = given(length)
        assert torch.equal(compiled(*inputs), run(*inputs)), (name, length)
    assert len(graphs) == 1, (name, len(graphs))
    assert any("multihead.attention" in str(node.target) for node in graphs[0].graph.nodes), name

# With the log-sum-exp, and weights made of it behind the graph.
for options in (
    {},
    {"mask": HELD},
    {"mask": MAPPED, "softcap": 3.0, "scale": torch.rand(4)},
    {"mask": MASK[0, 0], "bias": BIAS[0, 0], "normaliser": Softmax(sinks=SINKS)},
    {"bias": SLOPES},
    {"normaliser": Sigmoid(-1.0)},
):
    torch.compiler.reset()
    graphs = []
    backend = "auto" if "normaliser" in options else BACKEND

    def ask(q, k, v, options=options, backend=backend):
        attended = attention_lse(q * 2, k, v, **options, backend=backend)
        return attended.out + 1, attended.lse, attended

    compiled = torch.compile(ask, fullgraph=True, dynamic=True, backend=counting(graphs))
    for length in (16, 13, 21):
        inputs = given(length)[:3]
        *got, attended = compiled(*inputs)
        *want, plain = ask(*inputs)
        for mine, theirs in zip([*got, attended.weights()], [*want, plain.weights()], strict=True):
            assert mine is theirs is None or torch.equal(mine, theirs), (options, length)
        assert attended.backend == backend
    assert len(graphs) == 1, (options, len(graphs))

# One graph for other documents and other offsets, and a new one for another form.
graphs = []
compiled = torch.compile(
    lambda q, k, v, mask, q_offset: attention(q, k, v, mask=mask, q_offset=q_offset, backend=BACKEND),
    fullgraph=True,
    dynamic=True,
    backend=counting(graphs),
)
for place in range(4):
    q, k, v, _ = given(9)
    mask = document(torch.randint(3, (30 + place,)))
    assert torch.equal(compiled(q, k, v, mask, place), attention(q, k, v, mask=mask, q_offset=place, backend=BACKEND))
assert len(graphs) <= 2, len(graphs)
for window in (2, 3):
    q, k, v, _ = given(9)
    want = attention(q, k, v, mask=sliding_window(window), backend=BACKEND)
    assert torch.equal(compiled(q, k, v, sliding_window(window), 0), want)

# With the compiler itself.
q, k, v, keep = given(12)
compiled = torch.compile(lambda q: attention(q * 2, k, v, mask=HELD, backend=BACKEND).relu(), fullgraph=True)
assert torch.allclose(compiled(q), attention(q * 2, k, v, mask=HELD, backend=BACKEND).relu(), atol=1e-6)


class Layer(torch.nn.Module):
    """With a parameter, so that a gradient could be asked for."""

    def __init__(self, mask):
        super().__init__()
        self.linear, self.mask = torch.nn.Linear(8, 8), mask

    def forward(self, q, k, v):
        return attention(self.linear(q), k, v, mask=self.mask, backend=BACKEND)


for mask in (HELD, MAPPED):
    layer = Layer(mask)
    for strict in (False, True):
        length = torch.export.Dim("length", min=2, max=30)
        shapes = tuple({2: length} for _ in range(3))
        program = torch.export.export(layer, given(16)[:3], dynamic_shapes=shapes, strict=strict)
        assert any("multihead.attention" in str(node.target) for node in program.graph.nodes)
        for size in (16, 5):
            inputs = given(size)[:3]
            with torch.no_grad():
                assert torch.equal(program.module()(*inputs), layer(*inputs)), (strict, size)
