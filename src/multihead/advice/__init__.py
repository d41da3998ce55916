"""What attention costs, and what suits a model and a machine."""

from multihead.advice.cost import Cost, break_even, estimate_cost, fitted_exponent, meeting_point
from multihead.advice.law import Law
from multihead.advice.laws import LAWS
from multihead.advice.measured import MeasuredCost, measure_cost
from multihead.advice.sizes import Sizes

__all__ = [
    "LAWS",
    "Cost",
    "Law",
    "MeasuredCost",
    "Sizes",
    "break_even",
    "estimate_cost",
    "fitted_exponent",
    "measure_cost",
    "meeting_point",
]
