"""Find, watch and gate the attention heads of any model, in place and without changing what it computes."""

from multihead.hooks.address import addresses
from multihead.hooks.call import Call, Projection, Site, Tokens
from multihead.hooks.gate import gated
from multihead.hooks.locate import Located, locate
from multihead.hooks.watch import Watched, watching

__all__ = [
    "Call",
    "Located",
    "Projection",
    "Site",
    "Tokens",
    "Watched",
    "addresses",
    "gated",
    "locate",
    "watching",
]
