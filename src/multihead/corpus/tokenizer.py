"""What this library asks of a tokenizer: the few members that tokenizers of transformers share."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Any object that turns text into ids and knows its vocabulary; tokenizers of transformers do.

    `added_tokens_decoder`, `cls_token_id`, `bos_token_id` and `sep_token_id` are read where they exist.
    """

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens."""
        ...

    def get_vocab(self) -> Mapping[str, int]:
        """Every token with its id."""
        ...

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Mapping[str, Any]:
        """The ids of a text, under `"input_ids"`."""
        ...
