"""Every numbered complaint and every numbered trap has a test that names it."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def numbers(form):
    """The numbers at the beginning of the names of tests, behind `form`."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (told := re.match(rf"test_{form}((?:\d\d_)+)", node.name)):
                found |= {int(number) for number in told[1].strip("_").split("_")}
    return found


def test_no_complaint_is_without_a_test():
    assert numbers("") >= set(range(1, 39))


def test_no_trap_is_without_a_test():
    assert numbers("trap_") == set(range(1, 11))
