"""Selectors: which keys a query attends to, chosen from the content of the call."""

from multihead.attend.selector.base import Chosen, Selector
from multihead.attend.selector.blocks import Pages, TopBlocks
from multihead.attend.selector.buckets import Buckets
from multihead.attend.selector.indexer import Indexer
from multihead.attend.selector.keys import TopKeys

__all__ = ["Buckets", "Chosen", "Indexer", "Pages", "Selector", "TopBlocks", "TopKeys"]
