"""Where a head lives: one parser and one printer for `L18.H6`, `encoder.L10.H5`, `cross.L2.H1`."""

import re
from dataclasses import dataclass

from multihead.error import MultiheadError

_FORM = re.compile(r"(?:(?P<stack>[a-z][a-z0-9_]*)\.)?L(?P<layer>\d+)\.H(?P<head>\d+)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class HeadAddress:
    """The place of one head, counted from 0.

    Args:
        stack: `""` for a model with one stack of layers, else `"encoder"`, `"decoder"`, `"cross"` or another name.
        layer: Number of the attention layer within its stack, in the order of the forward pass.
        head: Number of the query head within its layer.

    Example:
        >>> HeadAddress.parse("encoder.L10.H5")
        HeadAddress(stack='encoder', layer=10, head=5)
        >>> str(HeadAddress("", 18, 6))
        'L18.H6'
    """

    stack: str
    layer: int
    head: int

    @classmethod
    def parse(cls, text: str) -> "HeadAddress":
        """Read an address.

        Raises:
            MultiheadError: The text is not an address.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise MultiheadError(
                asked="a head address such as L18.H6, encoder.L10.H5 or cross.L2.H1",
                arrived=repr(text),
                remedy="write the layer and the head, both counted from 0",
            )
        return cls(match["stack"] or "", int(match["layer"]), int(match["head"]))

    def __str__(self) -> str:
        prefix = f"{self.stack}." if self.stack else ""
        return f"{prefix}L{self.layer}.H{self.head}"
