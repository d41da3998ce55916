"""Locality-sensitive hashing: vectors that point the same way fall into one bucket, in one of several rounds."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, cast, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multihead.attend.selector.asked import check_no_graph
from multihead.attend.selector.base import Chosen, Selector
from multihead.attend.selector.bucket_tiles import Tiles
from multihead.error import MultiheadError, check_kinds
from multihead.pattern import Pattern

Cut = Literal["bucket", "sorted"]
_PAIRS = 2**24  # pairs that `select` looks at together


@dataclass(frozen=True, slots=True)
class Buckets(Selector):
    """How vectors are hashed into buckets, and who meets whom in them (Kitaev et al. 2020, arXiv:2001.04451).

    In each round a random matrix R of (head_dim, count / 2) normals sends x to the bucket `argmax([x R ; -x R])`: two
    vectors share it the more often, the smaller the angle between them. Found in one of r rounds is a pair that shares
    a bucket with probability p with probability `1 - (1 - p) ** r`. `LSHAttention` sorts tokens by (bucket, position)
    and cuts them into tiles of `chunk`; each sees its own tile and the one before.

    As a selector for queries and keys that are not the same it hashes both with the same matrices, and each query sees
    all keys of its buckets, once each, however many: `chunk`, `cut` and `dedupe` have no part in it. It looks at every
    pair, which costs more than it saves; it is there to look at buckets, and for heads trained on them.

    Args:
        count: Buckets of a round, even; or a tuple of even numbers, whose product it is: a hash by each, which costs
            their sum. None takes about `2 * length / chunk`, as published.
        rounds: r.
        chunk: Tokens in a tile: a query sees at most twice as many in a round.
        cut: `"bucket"` begins a tile with each bucket, so a token sees the tokens of its bucket alone, and what comes
            later changes nothing for it. `"sorted"` cuts through all buckets, and the first tile looks back to the last
            of the round before, as the Reformer does: which earlier tokens a token sees then depends on later ones, in
            a causal call as well.
        dedupe: A key met in several rounds counts once, as in the paper; otherwise as often as it is met, as in
            transformers: its score has log(how often) added.
        seed: Of the random matrices; None draws them from torch's generator at each call.

    Raises:
        MultiheadError: An odd count, sizes that are no whole numbers of at least 1, another cut, a wrong seed.

    Example:
        >>> Buckets(16, rounds=2, seed=1).hash(torch.randn(1, 4, 100, 8)).shape
        torch.Size([1, 4, 2, 100])
    """

    count: int | tuple[int, ...] | None = None
    _: KW_ONLY
    rounds: int = 4
    chunk: int = 64
    cut: Cut = "bucket"
    dedupe: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "chunk"):
            size = getattr(self, name)
            if not _is_whole(size) or size < 1:
                raise MultiheadError(
                    asked=f"Buckets({name}=...): a whole number of at least 1",
                    arrived=f"{name}={size!r}"[:200],
                    remedy="for example Buckets(rounds=4, chunk=64)",
                )
        given = self.count if isinstance(self.count, tuple) else (self.count,)
        if self.count is not None and not (given and all(_is_even(factor) for factor in given)):
            raise MultiheadError(
                asked="Buckets(count=...): an even number of at least 2 (half are the opposites of the others), or a "
                "tuple of such",
                arrived=f"count={self.count!r}"[:200],
                remedy=_even_remedy(self.count),
            )
        check_kinds({"dedupe": self.dedupe}, (bool,), "True or False")
        if not isinstance(self.cut, str) or self.cut not in get_args(Cut):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MultiheadError(
                asked="Buckets(cut=...): 'bucket' or 'sorted'",
                arrived=f"cut={self.cut!r}"[:200],
                remedy="leave it at 'bucket'; weights of a Reformer want 'sorted'",
            )
        if self.seed is not None and not (_is_whole(self.seed) and 0 <= self.seed < 2**63):
            raise MultiheadError(
                asked="Buckets(seed=...): a whole number from 0 to 2**63 - 1, or None",
                arrived=f"seed={self.seed!r}"[:200],
                remedy="for example seed=0, or None to draw from torch's generator at each call",
            )

    def factors(self, length: int) -> tuple[int, ...]:
        """Buckets of each hash whose product is their number, for so many tokens.

        Args:
            length: Tokens; it matters only where `count` is None.

        Example:
            >>> Buckets(chunk=64).factors(1024), Buckets(chunk=64).factors(32768)
            ((32,), (32, 32))
        """
        if self.count is not None:
            return self.count if isinstance(self.count, tuple) else (self.count,)
        power = max((2 * length // self.chunk).bit_length() - 1, 1)
        # A hash costs half its buckets times head_dim a token: in one piece that would grow with the length.
        return (2**power,) if 2**power <= max(self.chunk, 4) else (2 ** (power // 2), 2 ** (power - power // 2))

    def rotations(
        self, like: Float[Tensor, "batch heads length head_dim"]
    ) -> Float[Tensor, "heads head_dim rounds half"]:
        """The random matrices of a call, those of all hashes side by side.

        Args:
            like: What will be hashed. float64 draws in float64, all else in float32.

        Returns:
            (heads, head_dim, rounds, half the sum of the factors). With a seed the same, whatever torch's generator
            has drawn before, and as `ReformerConfig(hash_seed=seed)` draws them.
        """
        heads, length, width = like.shape[1:]
        shape = (heads, width, self.rounds, sum(self.factors(length)) // 2)
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return torch.randn(shape, generator=generator, dtype=dtype).to(like.device)

    def hash(
        self,
        x: Float[Tensor, "batch heads length head_dim"],
        rotations: Float[Tensor, "heads head_dim rounds half"] | None = None,
    ) -> Int[Tensor, "batch heads rounds length"]:
        """The bucket of each vector in each round; of its direction alone, and without a gradient.

        Args:
            x: What is hashed.
            rotations: What `rotations` gave, where it is to be used again.

        Raises:
            MultiheadError: Rotations of other sizes.
        """
        turns = self.rotations(x) if rotations is None else rotations
        factors = self.factors(x.shape[2])
        wanted = (x.shape[1], x.shape[3], self.rounds, sum(factors) // 2)
        if tuple(turns.shape) != wanted:
            raise MultiheadError(
                asked=f"rotations (heads, head_dim, rounds, half the buckets) = {wanted}",
                arrived=f"{tuple(turns.shape)}",
                remedy="pass what `buckets.rotations(x)` gives for these vectors, or None",
            )
        return self._each(x, turns, factors)

    def tiles(self, keys: Int[Tensor, "batch heads rounds length"]) -> Tiles:
        """Who meets whom, of the buckets (or finer numbers) of all tokens.

        Args:
            keys: What tokens are sorted by.
        """
        return Tiles.lay(keys, self.chunk, wraps=self.cut == "sorted")

    def select(
        self,
        q: Float[Tensor, "batch heads q_len head_dim"],
        k: Float[Tensor, "batch kv_heads kv_len head_dim"],
        *,
        mask: Pattern | Bool[Tensor, "..."] | None = None,
        q_offset: int | None = None,
    ) -> Pattern:
        """The keys of each query's buckets: `attention(q, k, v, mask=mask & chosen)`.

        Args:
            q: Queries.
            k: Keys; query head h reads kv head h // group.
            mask: It has no part in the choice: whether a pair shares a bucket depends on that pair alone.
            q_offset: Position of the first query.

        Raises:
            MultiheadError: Shapes that do not belong together.
        """
        check_no_graph(str(self))
        (batch, heads, q_len, width), (kv_heads, kv_len) = q.shape, k.shape[1:3]
        if k.shape[0] != batch or k.shape[3] != width or not kv_heads or heads % kv_heads:
            raise MultiheadError(
                asked="queries and keys of one batch and head_dim, heads that are a multiple of kv_heads",
                arrived=f"q {tuple(q.shape)}, k {tuple(k.shape)}",
                remedy="pass them as `attention` takes them",
            )
        k = k.repeat_interleave(heads // kv_heads, 1)
        turns = self.rotations(k)
        theirs, mine = (self._each(x, turns, self.factors(kv_len)) for x in (k, q))
        height = max(_PAIRS // max(batch * heads * kv_len, 1), 1)
        rows = [(some[..., None] == theirs[..., None, :]).any(2) for some in mine.split(height, 3)]
        chosen = torch.cat(rows, 2) if rows else torch.zeros(batch, heads, q_len, kv_len, dtype=torch.bool)
        return Chosen.from_blocks(chosen, block=1, q_offset=q_offset or 0)

    def _each(self, x: Tensor, turns: Tensor, factors: tuple[int, ...]) -> Tensor:
        """Buckets (batch, heads, rounds, length)."""
        wide = x.detach().to(turns.dtype)
        return torch.stack([self._hashed(wide, turns[:, :, place], factors) for place in range(self.rounds)], 2)

    def _hashed(self, x: Tensor, turns: Tensor, factors: tuple[int, ...]) -> Tensor:
        """Buckets (batch, heads, length) of one round."""
        turned = x @ turns
        bucket, product = torch.zeros(x.shape[:3], dtype=torch.long, device=x.device), 1
        for part, factor in zip(turned.split([factor // 2 for factor in factors], -1), factors, strict=True):
            # The largest of [t ; -t] is the largest |t|, on the side of its sign.
            best = part.abs().argmax(-1)
            side = part.gather(-1, best[..., None])[..., 0] < 0
            bucket, product = bucket + product * (best + side * (factor // 2)), product * factor
        return bucket


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_even(value: object) -> bool:
    return _is_whole(value) and cast(int, value) >= 2 and cast(int, value) % 2 == 0


def _even_remedy(given: object) -> str:
    if _is_whole(given) and cast(int, given) > 2:
        number = cast(int, given)
        return f"count={number - 1} or {number + 1}"
    return "for example count=64, or (16, 32), or None for a number by the length"
