"""What the heads of a record look like: first rule met, with its number, its baseline and its interval."""

from multihead.measure.role.compare import Comparison, Drift, Flip, compare
from multihead.measure.role.label import HeadLabel, Judgement, find_twins, judge, label_heads
from multihead.measure.role.rule import LEFT, NONE, QUIET, RULES, TWINS, Rule, Source, rules_for

__all__ = [
    "LEFT",
    "NONE",
    "QUIET",
    "RULES",
    "TWINS",
    "Comparison",
    "Drift",
    "Flip",
    "HeadLabel",
    "Judgement",
    "Rule",
    "Source",
    "compare",
    "find_twins",
    "judge",
    "label_heads",
    "rules_for",
]
