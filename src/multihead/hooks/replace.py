"""Other outputs in place of those of some heads."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from multihead.error import MultiheadError
from multihead.hooks.control import At, Chosen, by_place, read_address
from multihead.hooks.locate import check_model
from multihead.hooks.seam import tapped
from multihead.record import HeadAddress


@contextmanager
def replaced(
    model: nn.Module, outputs: Mapping[HeadAddress, Tensor | None] | Mapping[str, Tensor | None]
) -> Generator[None, None, None]:
    """While this is open, some heads put out what they are told at every position, whatever they compute.

    Addresses are counted as `gated` counts them.

    Args:
        model: A transformers model, or one built on `MultiHeadAttention`.
        outputs: For each head what it puts out, (v_head_dim,), or None for zeros. Gradients flow to it.

    Raises:
        MultiheadError: There is no such stack, layer or head; or an output is not as wide as the head.

    Example:
        >>> with replaced(model, {HeadAddress("", 3, 7): None}):  # doctest: +SKIP
        ...     model(**inputs)
    """
    check_model(model)
    tap = _Replacer(model, "other outputs of", by_place((read_address(head), out) for head, out in outputs.items()))
    with tap.trace.followed(), tapped(tap, model):
        yield
        tap.check_used()


class _Replacer(Chosen[Tensor | None]):
    """The tap behind `replaced`."""

    def act(self, chosen: Mapping[int, Tensor | None], at: At, output: Tensor) -> Tensor:
        heads, width = output.shape[2:]
        rows: list[Tensor] = []
        for head in range(heads):
            given = chosen.get(head)
            if given is not None and given.shape != (width,):
                raise MultiheadError(
                    asked=f"an output of head {HeadAddress(*at.place, at.heads[head])}: {width} numbers, its "
                    "v_head_dim",
                    arrived=f"a tensor of shape {tuple(given.shape)}",
                    remedy=f"pass shape ({width},); mh.mean_outputs measures means of this shape",
                )
            rows.append(output.new_zeros(width) if given is None else given.to(output))
        silent = torch.tensor([head in chosen for head in range(heads)], device=output.device)
        # Chosen, not multiplied: what is replaced may be NaN.
        return torch.where(silent[:, None], torch.stack(rows), output)
