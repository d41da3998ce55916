"""The table of all formulas: a row for each kind of attention that is built by name."""

from collections.abc import Mapping

from multihead.advice.law import DENSE, Law
from multihead.advice.law_chosen import CHOOSING
from multihead.advice.law_scan import SCANS

LAWS: Mapping[str, Law] = {**DENSE, **SCANS, **CHOOSING}
"""For every kind of attention that has a name, at the defaults it is then built with."""
