"""Frozen records that cross rooms: they can be saved, loaded, merged and compared, and know nothing of torch."""

from multihead.record.address import HeadAddress
from multihead.record.example import Example
from multihead.record.heads import FEW, HeadStatistics, HeadView
from multihead.record.pack import shrunk
from multihead.record.quantity import Document, Note, Quantity
from multihead.record.run import CheckupRecord, ModelFacts
from multihead.record.sampling import GROUPS, Sampling
from multihead.record.store import load_checkup, save_checkup, write_file

__all__ = [
    "FEW",
    "GROUPS",
    "CheckupRecord",
    "Document",
    "Example",
    "HeadAddress",
    "HeadStatistics",
    "HeadView",
    "ModelFacts",
    "Note",
    "Quantity",
    "Sampling",
    "load_checkup",
    "save_checkup",
    "write_file",
    "shrunk",
]
