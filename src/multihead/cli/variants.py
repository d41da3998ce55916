"""`multihead variants`: every kind of attention, what it costs at the user's sizes, what it supports and loses."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token
from rich.console import Console
from rich.table import Table

from multihead.advice import (
    Cost,
    MeasuredCost,
    Sizes,
    break_even,
    estimate_cost,
    measure_cost,
    meeting_point,
)
from multihead.cli.output import Json, memory_error, tell_json
from multihead.cli.progress import PlaceProgress
from multihead.cli.variants_options import Order, check_counts, check_given, check_together
from multihead.layer import FAMILIES, Family, find_family
from multihead.workflow import Progress

INTERRUPTED = 130
BASE = "multi_head"
"""What all others are held against."""
_PROBE = 256
"""Length at which each kind is timed first, to tell how long the others will take."""
_ROUNDS, _WIDEST = 5, 1000
_LETTERS = {"causal": "c", "bidirectional": "b", "cross": "x", "patterns": "m", "cached": "t"}
_LEGEND = """cache: bytes kept of all sequences after so many tokens.
can: c looks back only, b looks both ways, x looks at another sequence, m takes any pattern as a mask (all take padding
and documents), t goes token by token with a cache.
Work is counted, not timed: a kernel may do more of it, or do it slower."""


def _count(_: object, tokens: Sequence[Token]) -> int:
    return _whole(tokens[0])


def _counts(_: object, tokens: Sequence[Token]) -> list[int]:
    return [_whole(token) for token in tokens]


def _whole(token: Token) -> int:
    """A whole number as it stands, thousands apart by commas or not: 16.9 is no 17."""
    if not re.fullmatch(r"[+-]?\d+|\d{1,3}(,\d{3})+", token.value):
        raise ValueError(f"{token.value!r} is not a whole number")
    return int(token.value.replace(",", ""))


Count = Annotated[int, Parameter(converter=_count)]


@dataclass(slots=True)
class Cell:
    """A kind of attention at a length.

    Args:
        cost: What it computes there.
        timed: What it took; None where nobody timed it.
        skipped: Why it was not.
    """

    cost: Cost
    timed: MeasuredCost | None = None
    skipped: str | None = None


@dataclass(slots=True)
class Row:
    """A kind of attention.

    Args:
        kind: What is known of it.
        cells: For each length; none where it cannot do what is asked.
        less_work_from: From which length on a layer has less to compute than `multi_head`.
        faster_from: From which length on it takes less time here.
    """

    kind: Family
    cells: dict[int, Cell] = field(default_factory=dict[int, Cell])
    less_work_from: int | None = None
    faster_from: float | None = None


def variants(  # noqa: PLR0913 - options of a command, each with its own line of help
    *,
    embed_dim: Count = 512,
    heads: Count = 8,
    length: Annotated[list[int] | None, Parameter(converter=_counts, negative="", consume_multiple=True)] = None,
    batch: Count = 1,
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32",
    bidirectional: Annotated[bool, Parameter(negative="")] = False,
    train: Annotated[bool, Parameter(negative="")] = False,
    family: Annotated[list[str] | None, Parameter(negative="", consume_multiple=True)] = None,
    measure: Annotated[bool, Parameter(negative="")] = False,
    limit: float = 60.0,
    sort: Order = "listed",
    as_json: Json = False,
) -> int:
    """Tell what every kind of attention costs, supports and loses (the command's help is in `multihead.cli`).

    Parameters
    ----------
    embed_dim
        Width of the layer.
    heads
        Number of heads, a divisor of it.
    length
        Tokens of a sequence; several may be given. Default 1024 8192.
    batch
        Number of sequences.
    dtype
        Of all numbers.
    bidirectional
        Each token sees all, in place of itself and those before.
    train
        Work and time of a forward and a backward pass, in place of a forward pass.
    family
        Only these kinds, by name, beside multi_head; all if not given.
    measure
        Time a whole layer of each kind on this machine, beside the estimate.
    limit
        Seconds for all timings together; what would take longer is left out, and said.
    sort
        Order of the rows: as listed, or by work or time at the longest length, cache, growth, break-even; least first.
    as_json
        Print one JSON document.
    """
    lengths = sorted({1024, 8192} if not length else set(length))
    check_counts({"--embed-dim": [embed_dim], "--heads": [heads], "--length": lengths, "--batch": [batch]})
    check_given({"--length": length, "--family": family})
    check_together(embed_dim, heads, limit, sort=sort, measure=measure)
    base = Sizes(1, batch=batch, heads=heads, head_dim=embed_dim // heads, dtype=dtype, causal=not bidirectional)
    sizes = [replace(base, q_len=each) for each in lengths]
    names = list(FAMILIES) if not family else [BASE, *(find_family(n).name for n in family if n != BASE)]
    rows = [_row(find_family(name), sizes) for name in dict.fromkeys(names)]
    complete = _time(rows, limit=limit, step="train" if train else "infer") if measure else True
    rows.sort(key=lambda row: _place(row, sort, train=train))
    if as_json:
        tell_json(_document(rows, sizes, train=train, complete=complete))
    else:
        _tell(rows, sizes, train=train, measure=measure)
    return 0 if complete else INTERRUPTED


def _row(kind: Family, sizes: Sequence[Sizes]) -> Row:
    """What is known of a kind before anything is timed."""
    if not (kind.support.causal if sizes[0].causal else kind.support.bidirectional):
        return Row(kind)
    cells = {each.q_len: Cell(estimate_cost(kind.name, each)) for each in sizes}
    return Row(kind, cells, None if kind.name == BASE else break_even(kind.name, sizes[0], against=BASE))


def _time(rows: Sequence[Row], *, limit: float, step: Literal["infer", "train"]) -> bool:
    """Times every cell that the limit allows, short lengths first; False where it was interrupted."""
    clock = _Clock(limit=limit, step=step)
    cells = [(n, row, cell) for row in rows for n, cell in row.cells.items()]
    with PlaceProgress(Console(stderr=True, soft_wrap=True)) as progress:
        try:
            for done, (length, row, cell) in enumerate(sorted(cells, key=lambda each: each[0])):
                clock.time(cell, left=len(cells) - done)
                doing = f"{row.kind.name} at {length:,}"
                progress.update(Progress(done=done + 1, total=len(cells), unit="timings", doing=doing))
        except KeyboardInterrupt:
            for _, _, cell in cells:
                if cell.timed is None and cell.skipped is None:
                    cell.skipped = "interrupted"
            return False
    (base,) = [row for row in rows if row.kind.name == BASE]
    for row in rows:
        if row is not base:
            row.faster_from = meeting_point(_ratios(row, base))
    return True


def _ratios(row: Row, base: Row) -> dict[int, float]:
    """Time over that of multi-head attention, where both were timed."""
    found: dict[int, float] = {}
    for length, cell in row.cells.items():
        other = base.cells[length].timed
        if cell.timed is not None and other is not None:
            found[length] = cell.timed.seconds / other.seconds
    return found


class _Clock:
    """Times cells within a limit of seconds for all of them.

    Args:
        limit: Seconds.
        step: What is timed.
    """

    def __init__(self, *, limit: float, step: Literal["infer", "train"]) -> None:
        self.left = limit
        self.step: Literal["infer", "train"] = step
        self._pace: dict[str, float] = {}  # seconds a multiply-add

    def time(self, cell: Cell, *, left: int) -> None:
        """Times one, unless it would take longer than there is time."""
        try:
            expected = cell.cost.layer * self._paced(cell.cost)
            if expected > self.left:
                cell.skipped = f"about {expected:,.0f} s, more than --limit leaves"
                return
            cell.timed = self._timed(cell.cost.family, cell.cost.sizes, limit=self.left / left)
            # A short text goes slower, a multiply-add: the longest so far tells best.
            self._pace[cell.cost.family] = cell.timed.seconds / cell.cost.layer
        except (MemoryError, RuntimeError) as problem:
            if memory_error(problem) is None:
                raise
            cell.skipped = "more memory than there is"

    def _paced(self, cost: Cost) -> float:
        if cost.family not in self._pace:
            sizes = replace(cost.sizes, q_len=min(_PROBE, cost.sizes.q_len))
            timed = self._timed(cost.family, sizes, limit=0.0)
            self._pace[cost.family] = timed.seconds / estimate_cost(cost.family, sizes).layer
        return self._pace[cost.family]

    def _timed(self, family: str, sizes: Sizes, *, limit: float) -> MeasuredCost:
        found = measure_cost(family, sizes, step=self.step, rounds=_ROUNDS, limit=limit)
        self.left -= found.seconds * (found.rounds + (limit > 0))
        return found


def _place(row: Row, sort: Order, *, train: bool) -> tuple[float, float]:
    """Where a row stands; what cannot do what is asked stands last."""
    if not row.cells:
        return 1.0, 0.0
    cell = row.cells[max(row.cells)]
    timed = float("inf") if cell.timed is None else cell.timed.seconds
    never = float("inf") if row.less_work_from is None else row.less_work_from
    by = {
        "listed": 0,
        "work": _work(cell.cost, train=train),
        "time": timed,
        "cache": cell.cost.cache if row.kind.support.cached else float("inf"),
        "growth": cell.cost.exponent,
        "break-even": never if row.faster_from is None else row.faster_from,
    }
    return 0.0, float(by[sort])


def _work(cost: Cost, *, train: bool) -> int:
    return cost.training if train else cost.layer


def _document(rows: Sequence[Row], sizes: Sequence[Sizes], *, train: bool, complete: bool) -> dict[str, Any]:
    first = sizes[0]
    return {
        "sizes": {
            "embed_dim": first.embed_dim,
            "heads": first.heads,
            "head_dim": first.head_dim,
            "batch": first.batch,
            "dtype": first.dtype,
            "causal": first.causal,
            "lengths": [each.q_len for each in sizes],
        },
        "step": "train" if train else "infer",
        "complete": complete,
        "families": [_facts(row) for row in rows],
    }


def _facts(row: Row) -> dict[str, Any]:
    kind = row.kind
    return {
        "name": kind.name,
        "class": kind.module.__name__,
        "paper": kind.paper,
        "about": kind.about,
        "loses": kind.loses,
        "support": asdict(kind.support),
        "runs_as_asked": bool(row.cells),
        "less_work_from": row.less_work_from,
        "faster_from": row.faster_from,
        "at": [_cell_facts(length, cell, cached=kind.support.cached) for length, cell in row.cells.items()],
    }


def _cell_facts(length: int, cell: Cell, *, cached: bool) -> dict[str, Any]:
    cost = cell.cost
    told = {name: getattr(cost, name) for name in ("forward", "backward", "projections", "activations", "steps")}
    told |= {"growth": cost.growth, "exponent": cost.exponent}
    told |= {"cache": cost.cache if cached else None, "cache_per_token": cost.cache_per_token if cached else None}
    timed = cell.timed
    seconds = None
    if timed is not None:
        seconds = {name: getattr(timed, name) for name in ("seconds", "least", "most", "rounds", "threads")}
    return {"length": length, **told, "measured": seconds, "skipped": cell.skipped}


def _tell(rows: Sequence[Row], sizes: Sequence[Sizes], *, train: bool, measure: bool) -> None:
    console, first = Console(soft_wrap=True), sizes[0]
    told = f"one layer: {first.heads} heads of {first.head_dim}, batch {first.batch}, {first.dtype}, "
    told += "each token sees itself and those before" if first.causal else "each token sees all"
    told += "; a forward and a backward pass" if train else "; a forward pass"
    base = next(row for row in rows if row.kind.name == BASE)
    whole = ", ".join(f"{_short(_work(cell.cost, train=train))} at {n:,}" for n, cell in base.cells.items())
    console.print(f"{told}\nwork 1.00 = {whole} multiply-adds, projections included\n", highlight=False, markup=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("kind", no_wrap=True)
    table.add_column("growth", no_wrap=True)
    for name in _columns(sizes, measure=measure):
        table.add_column(name, justify="left" if name == "can" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_words(row, base, train=train, measure=measure, lengths=[each.q_len for each in sizes]))
    # Wrapped by a narrow terminal a row can still be read, cut off it cannot.
    Console(width=_WIDEST, soft_wrap=True).print(table)
    _explain(rows, console, measure=measure)


def _columns(sizes: Sequence[Sizes], *, measure: bool) -> list[str]:
    columns = [f"work {each.q_len:,}" for each in sizes]
    columns += [f"ms {each.q_len:,}" for each in sizes] if measure else []
    columns += [f"cache {sizes[-1].q_len:,}", "less from"]
    return [*columns, *(["faster from"] if measure else []), "can"]


def _words(row: Row, base: Row, *, train: bool, measure: bool, lengths: Sequence[int]) -> list[str]:
    """A row of the table."""
    can = "".join(letter if getattr(row.kind.support, name) else "-" for name, letter in _LETTERS.items())
    if not row.cells:
        return [row.kind.name, "", *[""] * (len(_columns([Sizes(n) for n in lengths], measure=measure)) - 1), can]
    work = [f"{_work(row.cells[n].cost, train=train) / _work(base.cells[n].cost, train=train):.2f}" for n in lengths]
    times = [_milliseconds(row.cells[n]) for n in lengths] if measure else []
    last = row.cells[lengths[-1]].cost
    held = f"{_short(last.cache)}B" if row.kind.support.cached else "none"
    held += " (fixed)" if row.kind.support.cached and not last.cache_per_token else ""
    itself = row is base
    less = "" if itself else "never" if row.less_work_from is None else _from(float(row.less_work_from), 1)
    faster = "" if itself else "not so far" if row.faster_from is None else _from(row.faster_from, lengths[0])
    return [row.kind.name, last.growth, *work, *times, held, less, *([faster] if measure else []), can]


def _from(length: float, shortest: int) -> str:
    return "always" if length <= shortest else f"{length:,.0f}"


def _milliseconds(cell: Cell) -> str:
    return "left out" if cell.timed is None else f"{1e3 * cell.timed.seconds:,.1f}"


def _explain(rows: Sequence[Row], console: Console, *, measure: bool) -> None:
    """What the columns mean, what each kind loses, and what was not timed."""
    lines = ["", "What each is and gives up:"]
    for row in rows:
        lost = f"; gives up {row.kind.loses}" if row.kind.loses else ""
        cannot = "" if row.cells else " (cannot do what is asked)"
        lines.append(f"  {row.kind.name}{cannot}: {row.kind.about}{lost}")
    skipped = [
        f"  {row.kind.name} at {length:,}: {cell.skipped}"
        for row in rows
        for length, cell in row.cells.items()
        if cell.skipped
    ]
    lines += ["", "Not timed:", *skipped] if skipped else []
    lines += ["", _LEGEND + ("" if measure else " --measure times every kind on this machine.")]
    console.print("\n".join(lines), highlight=False, markup=False)


def _short(count: int) -> str:
    """A large number with a letter for its thousands."""
    number = float(count)
    for letter in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {letter}"
        number /= 1000
    return f"{number:,.0f} P"
