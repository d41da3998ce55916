"""Random problems in the terms of the kernel's interface, with what the reference expects of them."""

import random
from itertools import count

import torch

from multihead.attend import Softmax, make_problem
from multihead.attend.reference import define
from native.replaying import Case

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Half a unit in the last place of a number of size 1: of the output, and of weights before they meet the values.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-11}
FREE = (-(2**63), 2**63 - 1)


def random_cases(seed, *, longest=200, widest=96):
    """Problems without end, of which each has a few of all options."""
    return (_Draw(f"{seed}/{at}", longest, widest).case() for at in count())


class _Draw:
    def __init__(self, seed, longest, widest):
        self.random = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(self.random.getrandbits(32))
        pick, often = self.random.choice, self.random.randint
        self.seed, self.dtype = seed, pick(list(DTYPES))
        self.batch, self.kv_heads = pick((1, 1, 2)), pick((1, 2))
        self.heads = self.kv_heads * pick((1, 1, 2, 3))
        self.q_len = pick((1, 1, 2, 7, often(0, longest), often(0, longest)))
        self.kv_len = pick((1, 64, 65, often(0, longest), often(0, longest), often(0, longest)))
        self.head_dim, self.v_head_dim = (pick((8, 64, often(1, widest), often(1, widest))) for _ in range(2))
        self.q_offset = pick((0, max(self.kv_len - self.q_len, 0), often(-40, 40)))
        self.fields, self.names = {}, []

    def chance(self, share):
        return self.random.random() < share

    def normal(self, *shape):
        return torch.randn(shape, generator=self.numbers, dtype=torch.float64)

    def whole(self, low, high, *shape, dtype=torch.int64):
        return torch.randint(low, high, shape, generator=self.numbers, dtype=dtype)

    def full(self):
        return self.batch, self.heads, self.q_len, self.kv_len

    def laid(self, name, values, dtype, *, cols=False):
        """Writes values of four dimensions as they may lie in memory, NaN in between; gives them back as stored."""
        shape, strides, ends = values.shape, [0] * 4, 1
        for dim in (3, *self.random.sample(range(3), 3)):
            strides[dim] = ends if shape[dim] > 1 or (dim == 3 and not cols) else 0
            ends = (shape[dim] - 1) * strides[dim] + ends if shape[dim] else ends
            ends += self.random.choice((0, 0, 1, 5)) if dim == 3 or self.chance(0.2) else 0
        size = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if values.numel() else 0
        blank = (
            torch.full((size,), torch.nan, dtype=dtype) if dtype.is_floating_point else self.whole(0, 2, size).to(dtype)
        )
        stored = values.to(dtype)
        if values.numel():
            blank.as_strided(shape, strides).copy_(stored)
        data, ends = (name, ("batch", "head", "row", "col")) if cols else (f"{name}.data", ("batch", "head", "row"))
        self.fields[data] = blank
        join = "_" if cols else "."
        self.fields.update({f"{name}{join}{end}": strides[dim] for dim, end in enumerate(ends)})
        return stored.double() if dtype.is_floating_point else stored

    def some(self, *sizes):
        """A shape in which each size may be 1."""
        return tuple(1 if self.chance(0.4) else size for size in sizes)

    def case(self):
        gain = self.random.choice((0.3, 1.0, 1.0, 3.0))
        q = self.laid("q", gain * self.normal(self.batch, self.heads, self.q_len, self.head_dim), self.dtype)
        k = self.laid("k", self.normal(self.batch, self.kv_heads, self.kv_len, self.head_dim), self.dtype)
        v = self.laid("v", self.normal(self.batch, self.kv_heads, self.kv_len, self.v_head_dim), self.dtype)
        scale = self.random.choice((self.head_dim**-0.5, -0.3 * self.head_dim**-0.5, 0.0))
        softcap = self.random.choice((0.0, 0.0, 0.0, 1.5, 20.0))
        sinks = self.normal(self.heads).float() if self.chance(0.25) else None
        self.fields |= {"dtype": DTYPES[self.dtype], "scale": float(scale), "softcap": softcap}
        self.fields |= {name: getattr(self, name) for name in ("batch", "heads", "kv_heads", "q_len", "kv_len")}
        self.fields |= {name: getattr(self, name) for name in ("head_dim", "v_head_dim", "q_offset")}
        if sinks is not None:
            self.fields["sinks"] = sinks
            self.names.append("sinks")
        mask, bias = self.mask(), self.bias()
        exact = make_problem(
            *(x for x in (q, k, v)),
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=softcap or None,
            normaliser=Softmax(sinks=None if sinks is None else sinks.double()),
        )
        self.expect(exact)
        sizes = (
            f"b{self.batch} h{self.heads}/{self.kv_heads} {self.q_len}x{self.kv_len} d{self.head_dim},{self.v_head_dim}"
        )
        return Case(f"{self.seed} {str(self.dtype)[6:]} {sizes} {' '.join(self.names)}", self.fields)

    def expect(self, exact):
        """The reference's answer, and how far an answer in float32 may be from it, row by row."""
        out, lse, _ = define(exact)
        lies = torch.full((self.batch, self.heads, self.q_len, self.v_head_dim), 0.0, dtype=torch.float64)
        self.laid("out", lies, self.dtype)
        self.fields["out.data"] = self.whole(0, 256, self.fields["out.data"].numel() * self.dtype.itemsize).byte()
        self.fields["out.data"] = self.fields["out.data"].view(self.dtype)
        # Weights that are rounded to bfloat16 anyway come from a shorter exponential: measured, 7e-5 in the lse.
        score = self.score_error(exact) + (2.0**-13 if self.dtype == torch.bfloat16 else 0)
        size = exact.v.abs().amax((1, 2, 3), keepdim=True)[..., 0] if exact.v.numel() else 0.0
        weights = 2.0**-22 if self.dtype == torch.float16 else 4 * ROUNDING[self.dtype]
        bound = size * (2 * score + weights + 2 * ROUNDING[self.dtype]) + 2.0**-24
        self.fields |= {"out.expected": out.float(), "out.bound": bound.expand(lse.shape).float().contiguous()}
        if self.chance(0.7):
            self.fields["lse"] = self.whole(0, 256, 4 * lse.numel()).byte().view(torch.float32)
            self.fields["lse.expected"] = lse.float()
            self.fields["lse.bound"] = (score + 2.0**-21 + lse.nan_to_num(neginf=0).abs() * 2.0**-22).float()

    def score_error(self, exact):
        """How far a row's scores may be off: the products, then bias and exponential, each in float32."""
        if not exact.kv_len:
            return torch.zeros(exact.q.shape[:3], dtype=torch.float64)
        k = exact.k.repeat_interleave(exact.group, 1)
        products = (exact.q.abs() @ k.abs().mT).amax(-1) * abs(exact.scale)
        added = torch.zeros(()) if exact.bias is None else exact.bias.nan_to_num(neginf=0).abs().amax(-1)
        return 2.0**-24 * ((4 + self.head_dim**0.5) * products + 8 * added + 4)

    def mask(self):
        allowed = torch.ones(self.full(), dtype=torch.bool)
        for name, share in (("window", 0.4), ("ids", 0.2), ("keep", 0.2), ("dense", 0.2), ("tiles", 0.3)):
            if self.chance(share):
                self.names.append(name)
                allowed = allowed & getattr(self, name)()
        return allowed

    def distances(self):
        return (self.q_offset + torch.arange(self.q_len))[:, None] - torch.arange(self.kv_len)

    def window(self):
        sizes = self.some(self.batch, self.heads)
        low, high = self.whole(-60, 40, *sizes), self.whole(-20, 90, *sizes)
        if self.chance(0.5):
            low = torch.zeros_like(low)
        low, high = low.where(self.whole(0, 4, *sizes) > 0, FREE[0]), high.where(self.whole(0, 3, *sizes) > 0, FREE[1])
        high = torch.maximum(low, high)
        self.fields["mask.window"] = torch.stack([low, high], -1)
        self.fields["mask.window_batch"] = sizes[1] if sizes[0] > 1 else 0
        self.fields["mask.window_head"] = 1 if sizes[1] > 1 else 0
        low, high = low[..., None, None], high[..., None, None]
        return (self.distances() >= low) & (self.distances() <= high)

    def ids(self):
        rows = self.some(self.batch)[0]
        q_ids, k_ids = (self.whole(0, 3, rows, n, dtype=torch.int32) for n in (self.q_len, self.kv_len))
        if self.chance(0.5):
            q_ids, k_ids = q_ids.sort().values, k_ids.sort().values
        self.fields |= {"mask.q_ids": q_ids, "mask.k_ids": k_ids}
        self.fields["mask.q_ids_batch"] = self.q_len if rows > 1 else 0
        self.fields["mask.k_ids_batch"] = self.kv_len if rows > 1 else 0
        return (q_ids[:, :, None] == k_ids[:, None, :])[:, None]

    def keep(self):
        rows = self.some(self.batch)[0]
        keep = self.whole(0, 4, rows, self.kv_len) > 0
        if self.chance(0.5):
            keep = torch.arange(self.kv_len) < self.whole(0, self.kv_len + 1, rows, 1)
        self.fields |= {"mask.keep": keep.byte(), "mask.keep_batch": self.kv_len if rows > 1 else 0}
        return keep[:, None, None, :]

    def dense(self):
        return self.laid("mask.dense", self.whole(0, 3, *self.some(*self.full())) > 0, torch.uint8, cols=True).bool()

    def tiles(self):
        sizes = self.some(self.batch, self.heads)
        across = -(-self.q_len // 64), -(-self.kv_len // 64)
        kind = self.whole(0, 3, *sizes, *across, dtype=torch.int8)
        count = self.random.randint(1, 5)
        index = self.whole(0, count, *kind.shape, dtype=torch.int32)
        seen = self.whole(0, 2, count, 64, 64).bool()
        weight = torch.tensor([1 << bit if bit < 63 else -(1 << 63) for bit in range(64)])
        self.fields |= {"mask.tile_class": kind, "mask.tile_index": index.where(kind == 1, -1)}
        self.fields |= {"mask.tile_bits": (seen * weight).sum(-1), "mask.tile_count": count}
        self.fields |= {"mask.q_tiles": across[0], "mask.k_tiles": across[1]}
        self.fields["mask.tile_batch"] = across[0] * across[1] * sizes[1] if sizes[0] > 1 else 0
        self.fields["mask.tile_head"] = across[0] * across[1] if sizes[1] > 1 else 0
        row, col = torch.arange(self.q_len)[:, None], torch.arange(self.kv_len)
        where = (slice(None), slice(None), row // 64, col // 64)
        return (kind[where] == 2) | (kind[where] == 1) & seen[index[where].long(), row % 64, col % 64]

    def bias(self):
        total = torch.zeros(self.full(), dtype=torch.float64)
        for name, share in (("slopes", 0.2), ("table", 0.2), ("numbers", 0.25)):
            if self.chance(share):
                self.names.append(name)
                total = total + getattr(self, "bias_" + name)()
        return total

    def bias_slopes(self):
        slopes = self.fields["bias.slopes"] = (0.1 * self.normal(self.heads)).float()
        return -slopes.double()[:, None, None] * self.distances().abs()

    def bias_table(self):
        length, first = self.random.randint(1, 60), self.random.randint(-40, 20)
        table = self.fields["bias.table"] = self.normal(self.heads, length).float()
        self.fields |= {"bias.table_first": first, "bias.table_len": length}
        return table.double()[:, (self.distances() - first).clamp(0, length - 1)]

    def bias_numbers(self):
        dtype = self.random.choice(list(DTYPES))
        self.fields["bias.dense_dtype"] = DTYPES[dtype]
        numbers = self.normal(*self.some(*self.full()))
        if self.chance(0.3):
            numbers = numbers.masked_fill(numbers < -0.7, -torch.inf)
        return self.laid("bias.dense", numbers, dtype, cols=True)
