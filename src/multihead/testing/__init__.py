"""Public checks for backends, and hypothesis strategies for problems."""

from multihead.testing.backend import BackendReport, CaseResult, check_backend, check_case
from multihead.testing.case import Case, Draw, Sizes, standard_cases
from multihead.testing.chance import random_pattern, random_problem
from multihead.testing.strategies import patterns, problems

__all__ = [
    "BackendReport",
    "Case",
    "CaseResult",
    "Draw",
    "Sizes",
    "check_backend",
    "check_case",
    "patterns",
    "problems",
    "random_pattern",
    "random_problem",
    "standard_cases",
]
