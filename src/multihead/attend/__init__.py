"""Attention of the softmax family: one problem, several backends, the same answer from each."""

from multihead.attend.choose import AUTOMATIC, BY_NAME, Backend, Explanation, Verdict, choose, explain, find
from multihead.attend.functional import Attended, attention, attention_lse, explain_backend
from multihead.attend.merge import Merged, merge
from multihead.attend.normaliser import Entmax, Normaliser, Sigmoid, Softmax, Sparsemax
from multihead.attend.problem import Problem, make_problem
from multihead.attend.reference import define
from multihead.attend.selector import Buckets, Indexer

__all__ = [
    "AUTOMATIC",
    "BY_NAME",
    "Attended",
    "Backend",
    "Buckets",
    "Entmax",
    "Explanation",
    "Indexer",
    "Merged",
    "Normaliser",
    "Problem",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
    "Verdict",
    "attention",
    "attention_lse",
    "choose",
    "define",
    "explain",
    "explain_backend",
    "find",
    "make_problem",
    "merge",
]
