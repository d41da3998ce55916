"""Run by test_every.py in a process of its own: aligners in graphs."""

import torch

from multihead.align import Bahdanau, Chunk, Coverage, LocalMonotonic, Luong, Monotonic

torch.set_num_threads(1)
ALIGNERS = [
    Bahdanau(3, 5, 4, coverage=Coverage()),
    Luong(3, 5, local=LocalMonotonic(1)),
    Monotonic(3, 5, 4, chunk=Chunk(2), form="expected", noise=0.0),
]


def two_steps(aligner, values, keep, queries):
    """Contexts of two steps, and the state after them."""
    memory = aligner.remember(values, keep)
    first = aligner.step(queries[:, 0], memory)
    second = aligner.step(queries[:, 1], memory, first.state)
    return first.context, second.context, second


def main():
    keep = torch.tensor([[True, True, False, True], [False] * 4])
    for aligner in ALIGNERS:
        values, queries = torch.randn(2, 4, 5), torch.randn(2, 2, 3)
        given = aligner, values, keep, queries
        told, plain = torch.compile(two_steps, backend="eager", fullgraph=True)(*given), two_steps(*given)
        torch.testing.assert_close(told[:2], plain[:2])
        torch.testing.assert_close(told[2].weights, plain[2].weights)


if __name__ == "__main__":
    main()
