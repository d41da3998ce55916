"""Both scans in chunks: within a chunk by products of matrices, from chunk to chunk by states."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import torch
from torch import Tensor

from multihead.error import MultiheadError
from multihead.scan.decay import Sums, carried, floor_of, scores

# Tokens in a chunk: measured to be fastest for heads of 64 on CPUs.
CHUNK = 64
# Chunks of all states that are computed at once: what lies between them then stays in the processor's cache.
_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A scan's input.

    Args:
        q: (batch, states, group, length, head_dim): the queries that read one state.
        k: (batch, states, length, head_dim); of the whole input (batch, kv_heads, ...).
        v: (batch, states, length, v_head_dim); likewise.
        logs: Log decays (1 | batch, states, 1 | length) or (batch, states, length, head_dim), at least `floor_of`;
            None for none. A length of 1 stands for all tokens alike.
        beta: (batch, states, length), of the delta rule; of the whole input of so many heads as were given.
        valid: True = a real token, (batch, length); None where all are.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    logs: Tensor | None
    beta: Tensor | None = None
    valid: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens."""
        return self.k.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: float32 or wider."""
        return torch.promote_types(self.q.dtype, torch.float32)

    def whole(self) -> "Prepared":
        """All tokens: in `dtype`, keys for each state, padding taken out. What is so already is not copied."""
        states, dtype = self.q.shape[1], self.dtype
        k, v = (_repeated(x, states).to(dtype) for x in (self.k, self.v))
        if self.valid is not None:
            padding = ~self.valid[:, None, :, None]
            # Both: what stands in padding may be anything, and 0 * inf is no 0.
            k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
        beta = None if self.beta is None else _repeated(self.beta, states).to(dtype)
        return Prepared(q=self.q.to(dtype), k=k, v=v, logs=self.logs, beta=beta)

    def parts(self, sizes: Sequence[int]) -> Iterator["Prepared"]:
        """So many tokens after so many, each as `whole` gives them, when they are asked for."""
        if len(sizes) == 1:
            yield self.whole()
            return
        # Not slice by slice: each would have a gradient as long as the whole.
        alike = self.logs is None or self.logs.shape[2] == 1
        given = (
            (self.q, 3),
            (self.k, 2),
            (self.v, 2),
            (None if alike else self.logs, 2),
            (self.beta, 2),
            (self.valid, 1),
        )
        several = [repeat(None) if x is None else x.split(list(sizes), dim) for x, dim in given]
        for _, q, k, v, logs, beta, valid in zip(sizes, *several, strict=False):
            logs = self.logs if alike else logs
            yield Prepared(q=q, k=k, v=v, logs=logs, beta=beta, valid=valid).whole()


def prepared(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor | None = None,
    log_decay: Tensor | None = None,
    reset: Tensor | None = None,
    valid: Tensor | None = None,
) -> Prepared:
    """The input of a scan; the arguments are those of `linear_attention` and `delta_rule`, checked."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    given = [1 if log_decay is None else log_decay.shape[min(log_decay.ndim - 1, 1)]]
    states = max(k.shape[1], *given, 1 if beta is None else beta.shape[1])
    return Prepared(
        q=q.unflatten(1, (states, q.shape[1] // states)),
        k=k,
        v=v,
        logs=_logs(log_decay, reset, (states, k.shape[2]), q.new_empty((), dtype=dtype)),
        beta=beta,
        valid=valid,
    )


def linear(
    given: Prepared, state: tuple[Tensor, Tensor | None], *, normalise: bool, chunk: int | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    """Linear attention.

    Args:
        given: The input.
        state: (batch, states, head_dim, v_head_dim) and, where outputs are normalised, (batch, states, head_dim).
        normalise: Whether outputs are divided by `q . z`.
        chunk: Tokens in a chunk; None for `CHUNK`.

    Returns:
        (batch, states, group, length, v_head_dim) and the state after the last token.
    """
    _check_open(given, CHUNK if chunk is None else chunk)
    outs: list[Tensor] = []
    for part, count in _stretches(given, CHUNK if chunk is None else chunk):
        out, state = _linear(part, state, count, normalise=normalise)
        outs.append(out)
    return (outs[0] if len(outs) == 1 else torch.cat(outs, 3)), state


def _linear(
    given: Prepared, state: tuple[Tensor, Tensor | None], count: int, *, normalise: bool
) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    """The same for `count` whole chunks."""
    q, k, v, sums = _cut(given, count)
    within = scores(q, k, sums)
    q, k, left = _decayed(q, k, sums)
    memory, mass = state
    memories = _states(k.mT @ v, left, memory)
    group = q.shape[-3]
    out = _rows(within) @ v + _rows(q) @ memories[:, :, :-1]
    last = None
    if normalise:
        assert mass is not None
        masses = _states(k.sum(-2)[..., None], left, mass[..., None])
        out = divided(out, _rows(within).sum(-1, keepdim=True) + _rows(q) @ masses[:, :, :-1])
        last = masses[:, :, -1, :, 0]
    out = out.unflatten(-2, (group, -1)).transpose(2, 3).flatten(3, 4)
    return out, (memories[:, :, -1], last)


def linear_step(
    given: Prepared, state: tuple[Tensor, Tensor | None], *, normalise: bool
) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
    """`linear` for one token."""
    given = given.whole()
    q, k, v = given.q[:, :, :, 0], given.k, given.v
    memory, mass = state
    kept = _kept(given)
    memory = (memory if kept is None else kept * memory) + k.mT * v
    out = q @ memory
    if normalise:
        assert mass is not None
        mass = (mass if kept is None else kept[..., 0] * mass) + k[:, :, 0]
        out = divided(out, q @ mass[:, :, None].mT)
    return out[:, :, :, None], (memory, mass)


def delta(given: Prepared, memory: Tensor, *, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """The delta rule (Yang et al. 2024, arXiv:2406.06484, section 3; with decays arXiv:2412.06464, section 3.3).

    Within a chunk the values that are written depend on each other as a triangular system does: `(I + tril(beta_i k_i .
    D_ij k_j, -1)) U = beta V` is solved once, and a chunk becomes an affine map of the state.

    Args:
        given: The input.
        memory: (batch, states, head_dim, v_head_dim).
        chunk: Tokens in a chunk; None for `CHUNK`.

    Returns:
        (batch, states, group, length, v_head_dim) and the state after the last token.
    """
    _check_open(given, CHUNK if chunk is None else chunk)
    outs: list[Tensor] = []
    for part, count in _stretches(given, CHUNK if chunk is None else chunk):
        out, memory = _delta(part, memory, count)
        outs.append(out)
    return (outs[0] if len(outs) == 1 else torch.cat(outs, 3)), memory


def _delta(given: Prepared, memory: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same for `count` whole chunks."""
    q, k, v, sums = _cut(given, count)
    assert given.beta is not None
    beta = given.beta.unflatten(2, (count, -1))[..., None]
    # The diagonal is not looked at: it is taken for 1.
    system = beta * scores(k[..., None, :, :], k, sums)[..., 0, :, :]
    within = scores(q, k, sums)
    early = k if sums is None else k * _shares(sums)
    q, late, left = _decayed(q, k, sums)
    solved = torch.linalg.solve_triangular(system, beta * torch.cat([v, early], -1), upper=False, unitriangular=True)
    written, reads = solved.split([v.shape[-1], k.shape[-1]], -1)
    group, head_dim = q.shape[-3], k.shape[-1]
    kept = torch.eye(head_dim, dtype=k.dtype, device=k.device)
    kept = kept if left is None else torch.diag_embed(left.exp().expand(*left.shape[:-1], head_dim))
    kept, added = kept - late.mT @ reads, late.mT @ written
    memories = [memory]
    for one in range(count):
        memories.append(added[:, :, one] + kept[:, :, one] @ memories[-1])
    before = torch.stack(memories[:-1], 2)
    out = _rows(within) @ (written - reads @ before) + _rows(q) @ before
    return out.unflatten(-2, (group, -1)).transpose(2, 3).flatten(3, 4), memories[-1]


def delta_step(given: Prepared, memory: Tensor) -> tuple[Tensor, Tensor]:
    """`delta` for one token."""
    given = given.whole()
    assert given.beta is not None
    kept = _kept(given)
    memory = memory if kept is None else kept * memory
    memory = memory + (given.beta[..., None] * given.k).mT * (given.v - given.k @ memory)
    return (given.q[:, :, :, 0] @ memory)[:, :, :, None], memory


def _check_open(given: Prepared, chunk: int) -> None:
    """Refuses a graph that is exported for lengths of any number of chunks."""
    length = given.length
    if not torch.compiler.is_exporting() or not isinstance(length, torch.SymInt):
        return
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes half a second

    if statically_known_true(length < chunk):
        return
    raise MultiheadError(
        asked="a graph of any length",
        arrived="a scan, whose chunks follow each other: a graph holds so many as it was made with",
        remedy=f"export it for one length, and pad texts to that; or with torch.export.Dim(..., max={chunk - 1})",
    )


def _stretches(given: Prepared, chunk: int) -> Iterator[tuple[Prepared, int]]:
    """Stretches of so many whole chunks, and what is left over as a shorter one: nothing is padded."""
    whole, rest = given.length // chunk, given.length % chunk  # of a size that a graph leaves open, too: no divmod
    batch, states = given.q.shape[:2]
    # A graph gets one stretch, whatever the length.
    stretch = max(1, whole if torch.compiler.is_compiling() else _AT_ONCE // max(1, batch * states))
    edges = [*range(0, whole, stretch), whole]
    counts = [b - a for a, b in pairwise(edges)] + [1] * bool(rest)
    sizes = [b * chunk - a * chunk for a, b in pairwise(edges)] + [rest] * bool(rest)
    yield from zip(given.parts(sizes), counts, strict=True)


def _cut(given: Prepared, count: int) -> tuple[Tensor, Tensor, Tensor, Sums | None]:
    """Queries (batch, states, chunks, group, chunk, head_dim), k, v (batch, states, chunks, chunk, ...), and sums."""
    size = given.length // count
    q = given.q.unflatten(3, (count, size)).transpose(2, 3)
    k, v = (x.unflatten(2, (count, size)) for x in (given.k, given.v))
    if given.logs is None:
        return q, k, v, None
    logs = given.logs
    if logs.shape[2] == 1 and size * count > 1:
        logs = logs[:, :, :, None].expand(*logs.shape[:2], 1, size, *logs.shape[3:])
    else:
        logs = logs.unflatten(2, (count, size))
    return q, k, v, Sums.of(logs, 3)


def _decayed(q: Tensor, k: Tensor, sums: Sums | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries decayed from the start of their chunk, keys to its end, and the log decay (..., chunks, 1 | head_dim)."""
    if sums is None:
        return q, k, None
    last = sums.at(slice(-1, None), slice(None)) if sums.high.ndim == k.ndim else sums.at(slice(-1, None))
    left = last.since(sums).exp()
    if sums.high.ndim == k.ndim:
        return q * _shares(sums)[..., None, :, :], k * left, last.high[..., 0, :]
    return q * _shares(sums)[..., None, :, :], k * left[..., None], last.high


def _shares(sums: Sums) -> Tensor:
    """What is left of the state before the chunk at each of its tokens, (..., chunk, 1 | head_dim)."""
    return sums.high.exp() if sums.high.ndim == 5 else sums.high.exp()[..., None]


def _states(steps: Tensor, left: Tensor | None, first: Tensor) -> Tensor:
    """States before each chunk and after the last, (batch, states, chunks + 1, head_dim, numbers).

    Args:
        steps: What each chunk adds, (batch, states, chunks, head_dim, numbers).
        left: Log decay of each chunk, (1 | batch, states, 1 | chunks, 1 | head_dim), or None.
        first: Before the first chunk.
    """
    count = steps.shape[2]
    if left is None:
        return torch.cat([first[:, :, None], steps], 2).cumsum(2)
    left = left.expand(*steps.shape[:3], -1)
    if left.shape[-1] == 1:
        made = carried(steps.flatten(-2), left[..., 0], first.flatten(-2))
        return made.unflatten(-1, steps.shape[-2:])
    made = carried(steps.transpose(2, 3), left.transpose(2, 3), first)
    return made.transpose(2, 3) if count else made


def _kept(given: Prepared) -> Tensor | None:
    """The share of the state that one token keeps, (1 | batch, states, 1 | head_dim, 1)."""
    logs = given.logs
    if logs is None:
        return None
    return logs.exp()[..., None] if logs.ndim == 3 else logs.exp().mT


def _rows(x: Tensor) -> Tensor:
    """Queries of a group one after another, as rows of one matrix."""
    return x.flatten(-3, -2)


def divided(out: Tensor, weight: Tensor) -> Tensor:
    """`out / weight`, 0 where the weight is 0: a query that sees no key, or none that it has anything to do with."""
    empty = weight == 0
    return (out / weight.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _logs(log_decay: Tensor | None, reset: Tensor | None, sizes: tuple[int, int], like: Tensor) -> Tensor | None:
    """Log decays as `Prepared` has them: where a document begins nothing is left of what was before."""
    if log_decay is None and reset is None:
        return None
    states, length = sizes
    floor = floor_of(like.dtype)
    if log_decay is None:
        logs = like.new_zeros(1, states, 1)
    else:
        logs = _repeated(log_decay[None, :, None] if log_decay.ndim == 1 else log_decay, states).to(like.dtype)
        logs = logs.clamp(min=floor)
    if reset is None:
        return logs
    begins = reset[:, None] if logs.ndim == 3 else reset[:, None, :, None]
    return logs.expand(reset.shape[0], states, length, *logs.shape[3:]).masked_fill(begins, floor)
