"""The cases of `kernel.py`, and what is aimed at in each."""

from dataclasses import dataclass, field

import torch

FP32, BF16 = "float32", "bfloat16"
DIMS = (32, 48, 64, 80, 96, 128, 192, 256)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attention call.

    Args:
        name: Its name on the command line.
        kind: forward, statistics or gram.
        queries: Queries; keys are as many unless given.
        keys: Keys, where they are more than the queries.
        causal: Whether queries look back only.
        window: Keys that a query sees, itself included; causal then.
        aims: The ratio aimed at for each dtype: PyTorch's time over ours. Of statistics and gram, ours over PyTorch's
            forward pass.
        long: Left out by --quick.
    """

    name: str
    kind: str = "forward"
    queries: int = 2048
    keys: int = 0
    heads: int = 8
    kv_heads: int = 8
    dim: int = 64
    causal: bool = False
    window: int = 0
    aims: dict[str, float] = field(default_factory=dict)
    long: bool = False

    @property
    def kv_len(self):
        return self.keys or self.queries

    @property
    def pairs(self):
        """Pairs of a query and a key that a head needs, the diagonal counted as half a pair as is usual."""
        if self.window:
            return self.queries * self.window - self.window**2 / 2
        return self.queries * self.kv_len / (2 if self.causal else 1)

    @property
    def flops(self):
        """Of the two products of a forward pass; of the scores alone for what is given the log-sum-exp."""
        return (4 if self.kind == "forward" else 2) * self.heads * self.pairs * self.dim

    @property
    def forward_flops(self):
        """What the forward pass beside it takes."""
        return 4 * self.heads * self.pairs * self.dim

    def tensors(self, dtype):
        """Queries, keys and values, the same in every process."""
        torch.manual_seed(0)
        sizes = (self.heads, self.queries), (self.kv_heads, self.kv_len), (self.kv_heads, self.kv_len)
        return [torch.randn(1, *size, self.dim).to(getattr(torch, dtype)) for size in sizes]

    def allowed(self):
        """The window as a boolean mask, for who needs one."""
        distance = torch.arange(self.queries)[:, None] - torch.arange(self.kv_len)
        return (distance >= 0) & (distance < self.window)

    def __str__(self):
        size = f"{self.queries}" if not self.keys else f"{self.queries} x {self.keys}"
        heads = f"{self.heads} heads" + (f" on {self.kv_heads}" if self.kv_heads != self.heads else "")
        shape = f"window {self.window}" if self.window else "causal" if self.causal else "full"
        return f"{self.kind}, {shape}, {size}, {heads}, dim {self.dim}"


def aims(fp32, bf16):
    return {FP32: fp32, BF16: bf16}


def _every():
    yield Case(name="full-512", queries=512, aims=aims(2.3, 4.5))
    yield Case(name="full-2048", aims=aims(2.4, 4.6))
    yield Case(name="full-8192", queries=8192, aims=aims(2.4, 4.75), long=True)
    yield Case(name="causal-512", queries=512, causal=True, aims=aims(3.2, 7.5))
    yield Case(name="causal-2048", causal=True, aims=aims(2.6, 5.2))
    yield Case(name="causal-8192", queries=8192, causal=True, aims=aims(2.5, 4.9), long=True)
    yield Case(name="grouped", heads=32, kv_heads=8, dim=128, causal=True, aims=aims(2.5, 5.2))
    yield Case(name="window", queries=8192, causal=True, window=256, aims=aims(44.0, 90.0), long=True)
    yield Case(name="decode", queries=1, keys=4096, heads=12, kv_heads=12, aims=aims(2.4, 20.0))
    for dim in DIMS:
        yield Case(name=f"dim-{dim}-full", dim=dim, aims={FP32: 1.5})
        yield Case(name=f"dim-{dim}-causal", dim=dim, causal=True, aims={FP32: 1.5})
    for length, most in ((2048, (0.30, 0.16)), (8192, (0.35, 0.20))):
        for causal in (False, True):
            name = f"{'causal' if causal else 'full'}-{length}"
            told = {"queries": length, "causal": causal, "long": length > 2048}
            yield Case(name=f"statistics-{name}", kind="statistics", aims=aims(0.28, 0.20), **told)
            yield Case(name=f"gram-{name}", kind="gram", aims=aims(*most), **told)


CASES = {case.name: case for case in _every()}
