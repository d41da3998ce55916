"""Loops that use the rooms below: the checkup of a model."""

from multihead.workflow.checkup import Progress, checkup
from multihead.workflow.compared import Compared, compare
from multihead.workflow.opening import OpenedModel, open_model
from multihead.workflow.plan import UNITS, Material
from multihead.workflow.report import Report, load_checkup

__all__ = [
    "UNITS",
    "Compared",
    "Material",
    "OpenedModel",
    "Progress",
    "Report",
    "checkup",
    "compare",
    "load_checkup",
    "open_model",
]
