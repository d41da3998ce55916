"""Routers of mixtures: which experts each token takes, how evenly they are loaded, and one product an expert."""

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from multihead.error import MultiheadError
from multihead.layer.check import check_counts

_EDGE = 8  # rows of a product come in so many


class Choice(NamedTuple):
    """What a router chose for each token.

    Args:
        logits: (batch, length, groups, experts), in float32 or wider.
        experts: (batch, length, groups, chosen): the numbers of those taken, the best first.
    """

    logits: Tensor
    experts: Tensor

    @property
    def taken(self) -> Float[Tensor, "batch length groups chosen"]:
        """The logits of the experts taken."""
        return self.logits.gather(-1, self.experts)

    @property
    def flags(self) -> Bool[Tensor, "batch length groups experts"]:
        """True = taken."""
        return torch.zeros_like(self.logits, dtype=torch.bool).scatter(-1, self.experts, value=True)


class Router(nn.Module):
    """Chooses for each token the experts with the largest logits `x W`; of equal ones those with the lower numbers.

    A token's choice depends on nothing but itself: no expert has a capacity that could be used up by other tokens, be
    they later ones or in other sequences, and no token is dropped. What keeps experts evenly loaded is a loss alone.

    After a call the router can be asked how it dealt: `load()` and `load_loss()` are of the last call. So a loss for a
    whole model is `sum(each.load_loss() for each in model.modules() if isinstance(each, Router))`. Gradients flow from
    it to W and to the inputs, also out of a compiled graph and of `checkpoint(..., use_reentrant=False)`. The logits of
    the last call stay in memory until the next one. A copy of the router has none.

    Args:
        embed_dim: Width of the inputs.
        experts: Experts to choose from.
        chosen: How many of them a token takes.
        groups: How many such choices there are for a token, each among experts of its own.

    Attributes:
        weight: W, (groups * experts, embed_dim): the experts of group 0, of group 1, ...

    Raises:
        MultiheadError: Numbers that are no counts, or more chosen than there are.

    Example:
        >>> router = Router(64, 8, chosen=2)
        >>> router(torch.randn(2, 10, 64)).experts.shape
        torch.Size([2, 10, 1, 2])
        >>> round(float(router.load().sum()))
        2
    """

    def __init__(self, embed_dim: int, experts: int, *, chosen: int, groups: int = 1) -> None:
        super().__init__()
        check_chosen(experts, chosen)
        check_counts({"embed_dim": embed_dim, "groups": groups})
        self.experts, self.chosen, self.groups = experts, chosen, groups
        self.weight = nn.Parameter(torch.empty(groups * experts, embed_dim))
        self._last: tuple[Tensor, Tensor] | None = None
        self.reset_parameters()

    def __getstate__(self) -> dict[str, object]:
        # Tensors in the middle of a graph can be neither copied nor saved.
        return {**vars(self), "_last": None}

    def reset_parameters(self) -> None:
        """Start anew: Xavier-uniform."""
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Float[Tensor, "batch length embed_dim"]) -> Choice:
        """The choice for each token.

        Args:
            x: (batch, length, embed_dim).
        """
        raw = linear(x, self.weight)
        logits = raw.to(torch.promote_types(raw.dtype, torch.float32)).unflatten(-1, (self.groups, self.experts))
        # Sorted, since torch leaves it open which of equal ones `topk` takes.
        index = logits.detach().sort(dim=-1, descending=True, stable=True).indices[..., : self.chosen]
        self._last = (logits, index)
        return Choice(logits, index)

    def load(self, keep: Bool[Tensor, "batch length"] | None = None) -> Float[Tensor, "groups experts"]:
        """The share of tokens that took each expert in the last call: 0 to 1, `chosen` in sum, no gradient.

        Args:
            keep: True = a token that counts, to leave out padding; None counts all.

        Raises:
            MultiheadError: There was no call yet, or `keep` is not of its tokens.
        """
        choice, keep = self._told(keep)
        return _mean(choice.flags.to(choice.logits.dtype), keep)

    def load_loss(self, keep: Bool[Tensor, "batch length"] | None = None) -> Float[Tensor, ""]:
        """How unevenly the experts were loaded in the last call: `n^2 mean(f p)`, the mean of the groups.

        With n experts, `f` is the share of tokens that took each, `p` its mean probability, `softmax(x W)`, through
        which the gradient flows. It is `chosen` where either is uniform, and more where the experts that are taken more
        often are the more probable ones (Shazeer et al. 2017; Fedus et al. 2022, "Switch Transformers"; Jin et al.
        2024, "MoH"). A usual factor is 0.01.

        Args:
            keep: As in `load`.

        Raises:
            MultiheadError: As in `load`; or the call ran without gradients and the loss is to have some.
        """
        choice, keep = self._told(keep)
        if torch.is_grad_enabled() and self.weight.requires_grad and not choice.logits.requires_grad:
            raise MultiheadError(
                asked="a load loss with gradients",
                arrived="a last call that ran without: under torch.no_grad, or in a checkpoint that runs it again",
                remedy="call the layer with gradients, use checkpoint(..., use_reentrant=False), or ask for the number "
                "alone under torch.no_grad",
            )
        share, probability = self.load(keep), _mean(choice.logits.softmax(-1), keep)
        return self.experts * (share * probability).sum(-1).mean()

    def _told(self, keep: Tensor | None) -> tuple[Choice, Tensor | None]:
        """The last choice, and what of it counts."""
        if self._last is None:
            raise MultiheadError(
                asked="the load of the last call of a router",
                arrived="a router that was not called yet, or a copy of one",
                remedy="call the layer first",
            )
        choice = Choice(*self._last)
        shape = choice.logits.shape[:2]
        if keep is not None and (keep.dtype != torch.bool or keep.shape != shape):
            raise MultiheadError(
                asked=f"keep: booleans {tuple(shape)}, one for each token of the last call",
                arrived=f"{keep.dtype} of shape {tuple(keep.shape)}",
                remedy="pass attention_mask.bool(), of the tokens that chose",
            )
        return choice, keep

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        shown = f"{self.weight.shape[1]}, experts={self.experts}, chosen={self.chosen}"
        return shown + (f", groups={self.groups}" if self.groups > 1 else "")


def check_chosen(experts: int, chosen: int, *, of: str = "experts") -> None:
    """Refuses to choose none, or more than there are."""
    check_counts({of: experts})
    whole = isinstance(chosen, int) and not isinstance(chosen, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not whole or not 1 <= chosen <= experts:
        raise MultiheadError(
            asked=f"chosen: how many of the {experts} {of} a token takes",
            arrived=f"chosen={chosen!r}"[:200],
            remedy=f"pass 1 to {experts}" if experts != 1 else "pass 1",
        )


class Dealt(NamedTuple):
    """Rows of tokens, one for each expert a token took, sorted by expert.

    Args:
        order: (rows,): which row of (token, slot) comes first, second, ...: those of expert 0, of expert 1, ...
        place: (tokens, slots): where each went.
        counts: (experts,): how many each expert got.
    """

    order: Tensor
    place: Tensor
    counts: Tensor


def deal(index: Int[Tensor, "tokens slots"], experts: int) -> Dealt:
    """Sorts what tokens chose by expert, those of one expert in the order of the tokens."""
    flat = index.flatten()
    order = flat.sort(stable=True).indices
    place = torch.empty_like(order).scatter(0, order, torch.arange(flat.numel(), device=flat.device))
    counts = torch.zeros(experts, dtype=torch.long, device=flat.device).scatter_add(0, flat, torch.ones_like(flat))
    return Dealt(order, place.view(index.shape), counts)


def to_experts(
    x: Float[Tensor, "tokens width"], dealt: Dealt, weight: Float[Tensor, "experts out width"]
) -> Float[Tensor, "tokens slots out"]:
    """`x W_e^T` for each expert e that a token took, and for no other: one product an expert.

    Args:
        x: The tokens.
        dealt: What they chose.
        weight: The experts.
    """
    return _products(x[dealt.order // dealt.place.shape[1]], weight, dealt.counts)[dealt.place]


def from_experts(
    x: Float[Tensor, "tokens slots width"], dealt: Dealt, weight: Float[Tensor, "experts out width"]
) -> Float[Tensor, "tokens out"]:
    """`sum_s x_s W_e(s)^T` over a token's slots, each by the expert it was given to: one product an expert.

    Args:
        x: What each token has for each of its experts, weighted.
        dealt: What they chose.
        weight: The experts.
    """
    # Put back and summed, not added into place: always in the order of the slots, on every device.
    return _products(x.flatten(0, 1)[dealt.order], weight, dealt.counts)[dealt.place].sum(1)


def _mean(x: Tensor, keep: Tensor | None) -> Tensor:
    """Means over tokens (batch, length, ...), of those that count; 0 where none does."""
    rows = x.flatten(0, 1) if keep is None else x.flatten(0, 1) * keep.flatten().to(x.device)[:, None, None]
    count = x.shape[0] * x.shape[1] if keep is None else keep.sum().to(x.device)
    return rows.sum(0) / (max(count, 1) if isinstance(count, int) else count.clamp(min=1))


def _products(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Rows (all, in), sorted by expert, times the weights (experts, out, in) of their experts."""
    if rows.is_meta:  # shapes alone are asked for
        return _shape(rows, weight, counts)
    if not torch.compiler.is_compiling():
        return _all_products(rows, weight, counts)
    # How many rows an expert gets is a number, which a graph does not know: one operator of it.
    kind = rows.device.type
    if torch.is_autocast_enabled(kind):
        rows, weight = (each.to(torch.get_autocast_dtype(kind)) for each in (rows, weight))
    return torch.ops.multihead.expert_products(rows, weight, counts)


def _all_products(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    made: list[Tensor] = []
    start = 0
    for count, expert in zip(cast(list[int], counts.tolist()), weight, strict=True):
        # The last rows of a product may be summed in another order than the others. So there are always some more, the
        # next expert's or zeros: what a token gets depends in no bit on how many others take the same expert.
        height = -(-count // _EDGE) * _EDGE
        part = rows[start : start + height]
        made.append(linear(pad(part, (0, 0, 0, height - part.shape[0])), expert)[:count])
        start += count
    return torch.cat(made)


def _all_outer(rows: Tensor, grad: Tensor, counts: Tensor) -> Tensor:
    """For each expert the gradient of its weight, (experts, out, in)."""
    sizes = cast(list[int], counts.tolist())
    return torch.stack([g.T @ part for g, part in zip(grad.split(sizes), rows.split(sizes), strict=True)])


def _shape(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


def _outer_shape(rows: Tensor, grad: Tensor, counts: Tensor) -> Tensor:
    return rows.new_empty(counts.shape[0], grad.shape[1], rows.shape[1])


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _pull(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, weight, counts = ctx.saved_tensors
    grad = grad.contiguous()
    back = torch.ops.multihead.expert_products(grad, weight.transpose(1, 2), counts)
    return back, torch.ops.multihead.expert_outer_products(rows, grad, counts), None


_OPERATORS = torch.library.Library("multihead", "FRAGMENT")
_OPERATORS.define("expert_products(Tensor rows, Tensor weight, Tensor counts) -> Tensor")
_OPERATORS.define("expert_outer_products(Tensor rows, Tensor grad, Tensor counts) -> Tensor")
_OPERATORS.impl("expert_products", _all_products, "CompositeExplicitAutograd")
_OPERATORS.impl("expert_outer_products", _all_outer, "CompositeExplicitAutograd")
torch.library.register_fake("multihead::expert_products", _shape, lib=_OPERATORS)
torch.library.register_fake("multihead::expert_outer_products", _outer_shape, lib=_OPERATORS)
torch.library.register_autograd("multihead::expert_products", _pull, setup_context=_remember, lib=_OPERATORS)
