"""Find, watch and gate the attention heads of any model, in place and without changing what it computes."""

from multihead.hooks.address import addresses
from multihead.hooks.call import Call, Projection, Site, Tokens
from multihead.hooks.families import Family, families
from multihead.hooks.gate import gated
from multihead.hooks.head_gate import HeadGate
from multihead.hooks.locate import Layers, Located, locate
from multihead.hooks.prune import Pruned, prune_heads
from multihead.hooks.replace import replaced
from multihead.hooks.watch import Watched, watching

__all__ = [
    "Call",
    "Family",
    "HeadGate",
    "Layers",
    "Located",
    "Projection",
    "Pruned",
    "Site",
    "Tokens",
    "Watched",
    "addresses",
    "families",
    "gated",
    "locate",
    "prune_heads",
    "replaced",
    "watching",
]
