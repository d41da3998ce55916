"""Frozen records that cross rooms: they can be saved, loaded, merged and compared, and know nothing of torch."""

from multihead.record.address import HeadAddress
from multihead.record.heads import Document, HeadStatistics, HeadView, Note, Quantity
from multihead.record.run import CheckupRecord, ModelFacts
from multihead.record.store import load_checkup, save_checkup

__all__ = [
    "CheckupRecord",
    "Document",
    "HeadAddress",
    "HeadStatistics",
    "HeadView",
    "ModelFacts",
    "Note",
    "Quantity",
    "load_checkup",
    "save_checkup",
]
