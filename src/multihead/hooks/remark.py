"""What has to be said of kinds of attention whose heads are told otherwise than they read, or not at all."""

from collections.abc import Iterator

from torch import nn

from multihead.layer import (
    DifferentialAttention,
    GatedDeltaNet,
    GatedLinearAttention,
    LinearAttention,
    LongformerAttention,
    MoAAttention,
    MoHAttention,
    NativeSparseAttention,
    TalkingHeadsAttention,
)

_STATE = (
    "it keeps one state of all earlier tokens, read by each query: it has no weights of pairs that could be told; "
    "linear heads of a MultiHeadAttention can be gated and ablated"
)
_REMARKS: dict[type[nn.Module], str] = {
    DifferentialAttention: "what is told as a head is one of the two maps of a head, of which the second is taken off "
    "the first: there are twice as many as heads",
    MoAAttention: "what is told as a head is a slot: a head of a token's best expert, of its second best, and so on; "
    "neighbouring rows of it may be of different experts",
    MoHAttention: "a head is told at the tokens that took it; other rows see no key there",
    NativeSparseAttention: "each head is told three times, for the branches of compressed blocks, of chosen blocks and "
    "of the window, and measured over the rows of all three together, before their gates; keys of the first branch are "
    "blocks and no tokens, so that distances and positions of keys are not those of tokens there",
}


def untold(module: nn.Module, call: int) -> str:
    """Why a call of one of our modules cannot be told; empty where it can.

    Args:
        module: The module.
        call: Which call of it in a pass it is, from 1.
    """
    if isinstance(module, TalkingHeadsAttention):
        return "its heads mix their scores and their weights, so that no weights are those of one head"
    if isinstance(module, LongformerAttention) and call > 1:
        return "rows of global tokens are computed once more, from other projections; only those of the window are told"
    return ""


def remark_on(module: nn.Module) -> str:
    """What has to be known to read the calls of a module; empty where they are as they read.

    Args:
        module: The module.
    """
    return next((text for kind, text in _REMARKS.items() if isinstance(module, kind)), "")


def stateful(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Modules of linear attention, which have no weights, with the reason.

    Args:
        model: The model.
    """
    for path, module in model.named_modules():
        if isinstance(module, LinearAttention | GatedLinearAttention | GatedDeltaNet):
            yield path, _STATE
