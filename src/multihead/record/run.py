"""The record of one checkup: what was run, on what, and what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from multihead.record.heads import HeadStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a reader wants to know of the model.

    Args:
        name: As the user named it.
        architecture: Class of the model, e.g. `"BertModel"`.
        parameters: Number of parameters, shared ones counted once.
        causal: Whether self-attention looks back only; None where the stacks differ.
        max_length: Longest input in tokens, None where the model states none.
        special_tokens: Text of its special tokens, e.g. `("[CLS]", "[SEP]")`.
    """

    name: str
    architecture: str
    parameters: int
    causal: bool | None
    max_length: int | None
    special_tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckupRecord:
    """Everything a checkup found; the page is made from this alone.

    Args:
        model: Facts of the model.
        texts: Statistics over the user's (or the default) texts.
        repeats: Statistics over random tokens repeated several times, or None where they were not run.
        created: UTC time as `YYYY-MM-DDTHH:MM:SSZ`.
        versions: Version of each package that shaped the numbers.
        settings: What the user asked for, as text: `max_length`, `device`, `dtype`, ...
        complete: False if the run was interrupted; what was measured until then is here.
        reads: What the model was given: `"text"`, `"images"` or `"audio"`.
    """

    model: ModelFacts
    texts: HeadStatistics
    repeats: HeadStatistics | None
    created: str
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    complete: bool = True
    reads: str = "text"
