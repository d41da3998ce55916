"""What pictures and recordings have in common when they are made ready for a model."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from multihead.corpus import TokenClasses
from multihead.pattern import Pattern
from multihead.workflow.encode import Encoded

EXAMPLES = 4
"""How many documents have a stretch whose links are kept."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedMedia(Encoded):
    """Pictures or recordings as a model will read them.

    Args:
        documents: One entry a picture or recording, in the order given.
        batches: One picture each, or one chunk of one recording.
        model: What to run: the model, or the part of it that reads pictures.
        classes: Names of the classes of places; which place is of which is told by each batch.
        targets: Patterns to measure against, by name.
        remarks: What the reader must know, in words.
    """

    model: nn.Module
    classes: TokenClasses | None
    targets: Mapping[str, Pattern]
    remarks: tuple[str, ...] = ()


def place_of(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device of a model, and the dtype of its weights."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return weight.device, weight.dtype


@contextmanager
def at_rest(model: nn.Module) -> Generator[None]:
    """A model in eval mode and without gradients, every module's own flag put back after."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
