"""Take heads out of a model that runs, and measure what to put in their place."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from multihead.error import MultiheadError, kind_and_text
from multihead.hooks import Call, Site, addresses, replaced, watching
from multihead.hooks.control import by_place, check_there, read_address
from multihead.hooks.locate import check_model
from multihead.measure.batch import Batch
from multihead.measure.given import given_batches
from multihead.measure.observe import evaluating
from multihead.record import HeadAddress


@contextmanager
def ablated(
    model: nn.Module,
    heads: Iterable[HeadAddress | str],
    *,
    values: Mapping[HeadAddress, Tensor] | Mapping[str, Tensor] | None = None,
) -> Generator[None, None, None]:
    """Run a model without some heads: their outputs are zeros, or given means, at every position.

    `y = concat_h(o_h) @ W_O.T + b`, where `o_h` of an ablated head is 0, or its value: `mean_outputs` measures the
    means, which keep what the head adds whatever it reads. Works on whatever kernel the model runs, within `generate`
    too; what the head computes does not matter, not even NaN. Addresses are counted as `gated` counts them.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        heads: Which.
        values: For each of these heads what it puts out instead, (v_head_dim,); heads besides are passed over. None is
            zeros. Gradients flow to them.

    Raises:
        MultiheadError: No heads, or one twice; no value for one of them, or one that is no row of finite numbers; there
            is no such stack, layer or head (before the model runs, where the model tells); or a value is not as wide as
            the head.

    Example:
        >>> with ablated(model, ["L18.H6"], values=mean_outputs(model, batches)):  # doctest: +SKIP
        ...     loss = model(**inputs, labels=labels).loss
    """
    check_model(model)
    chosen = _chosen(heads)
    if values is None:
        outputs: dict[HeadAddress, Tensor | None] = dict.fromkeys(chosen)
    else:
        outputs = dict(_values(chosen, values))
    with replaced(model, outputs):
        yield


def mean_outputs(
    model: nn.Module, batches: Batch | Iterable[Batch], heads: Iterable[HeadAddress | str] | None = None
) -> dict[HeadAddress, Float64[Tensor, " v_head_dim"]]:
    """The mean output of heads over all real tokens of some batches, in one pass, in eval mode and without gradients.

    Padding is left out. A query that sees no key has an output of 0, which counts.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        batches: What the model gets.
        heads: Which; None for all.

    Returns:
        For each head its mean (v_head_dim,), before the output projection, for `ablated(..., values=...)`.

    Raises:
        MultiheadError: No heads are asked for, or one twice; the model has no such head; no batches; or no attention is
            to be seen.

    Example:
        >>> means = mean_outputs(model, batches)  # doctest: +SKIP
        >>> means[HeadAddress("", 3, 7)].shape  # doctest: +SKIP
        torch.Size([64])
    """
    check_model(model)
    chosen = None if heads is None else _chosen(heads)
    if chosen is not None:
        places = by_place((head, None) for head in chosen)
        check_there(model, "the mean output of", {place: max(heads) for place, heads in places.items()})
    sums = _Sums()
    with evaluating(model), torch.no_grad(), watching(model, sums.add) as watched:
        for batch in given_batches(batches):
            model(**batch.inputs)
    means = sums.means(watched.sites)
    if chosen is None:
        return means
    absent = [head for head in chosen if head not in means]
    if absent:
        raise MultiheadError(
            asked=f"the mean output of head {absent[0]} of {type(model).__name__}",
            arrived=f"{len(means)} heads, {next(iter(means), 'none')} to {next(reversed(means), 'none')}",
            remedy="layers and heads are counted from 0, cross-attention as cross.L0.H0",
        )
    return {head: means[head] for head in chosen}


class _Sums:
    """Sums of outputs by layer and kind of heads."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Site, int], Tensor] = {}
        self._rows: dict[tuple[Site, int], float] = {}

    def add(self, call: Call) -> None:
        output, keep = call.output.double(), call.queries.keep
        slot, rows = (call.site, call.first_head), float(output.shape[0] * output.shape[1])
        if keep is not None:
            real = keep.to(output.device)[:, :, None, None]
            # What padding puts out does not matter, NaN included.
            output, rows = output.masked_fill(~real, 0.0), float(keep.sum())
        found = output.sum((0, 1))
        self._sums[slot] = self._sums[slot] + found if slot in self._sums else found
        self._rows[slot] = self._rows.get(slot, 0.0) + rows

    def means(self, sites: tuple[Site, ...]) -> dict[HeadAddress, Tensor]:
        places = addresses(sites)
        found = {
            HeadAddress(*places[site], first + head): row / self._rows[site, first]
            for (site, first), sums in self._sums.items()
            for head, row in enumerate(sums)
        }
        return dict(sorted(found.items()))


def _chosen(heads: object) -> list[HeadAddress]:
    """The heads that are asked for, at least one and each once."""
    if isinstance(heads, str | HeadAddress) or not isinstance(heads, Iterable):
        raise MultiheadError(
            asked="a list of heads", arrived=kind_and_text(heads), remedy='pass ["L18.H6"], a list also for one head'
        )
    chosen = [read_address(head) for head in cast(Iterable[object], heads)]
    twice = [head for place, head in enumerate(chosen) if head in chosen[:place]]
    if not chosen or twice:
        raise MultiheadError(
            asked="at least one head, and each once",
            arrived=f"{twice[0]} twice" if twice else "no heads",
            remedy='name them like ["L18.H6", "L18.H7"]',
        )
    return chosen


def _values(chosen: list[HeadAddress], values: object) -> Iterable[tuple[HeadAddress, Tensor]]:
    if not isinstance(values, Mapping):
        raise MultiheadError(
            asked="values by head",
            arrived=kind_and_text(values),
            remedy='pass {"L18.H6": tensor}, or what mh.mean_outputs(model, batches) returns',
        )
    given = {read_address(name): value for name, value in cast(Mapping[object, object], values).items()}
    for head in chosen:
        value = given.get(head)
        row = isinstance(value, Tensor) and value.ndim == 1 and value.is_floating_point()
        if not isinstance(value, Tensor) or not row or not bool(value.detach().isfinite().all()):
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            arrived = "none" if value is None else f"{type(value).__name__}{shape} {str(value)[:60]!r}"
            raise MultiheadError(
                asked=f"a value for head {head}: finite numbers (v_head_dim,)",
                arrived=arrived,
                remedy="give one for each head that is taken out; values=None is zeros",
            )
        yield head, value
