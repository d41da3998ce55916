"""Selectors: which keys a query attends to, chosen from the content of the call."""

from multihead.attend.selector.base import Chosen, Selector

__all__ = ["Chosen", "Selector"]
