"""One message template for every error: what was asked, what arrived, what to do."""

from multihead.error.message import BackendRefused, MultiheadError, RecordError
from multihead.error.system import remedy_of

__all__ = ["BackendRefused", "MultiheadError", "RecordError", "remedy_of"]
