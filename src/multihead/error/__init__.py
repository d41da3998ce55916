"""One message template for every error: what was asked, what arrived, what to do."""

from multihead.error.kind import check_kinds
from multihead.error.message import BackendRefused, MultiheadError, RecordError, kind_and_text
from multihead.error.system import remedy_of, system_error

__all__ = [
    "BackendRefused",
    "MultiheadError",
    "RecordError",
    "check_kinds",
    "kind_and_text",
    "remedy_of",
    "system_error",
]
