"""Sphinx configuration: Markdown pages, no network."""

from multihead.corpus import CLASSES
from multihead.measure.statistic import DEFAULT, DEFAULT_TARGETS, target, token_class

project = "multihead"
author = "The multihead authors"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["results/*"]
myst_heading_anchors = 3


def list_statistics(app, name, source):
    """Put the statistics, as the code defines them, where the page asks for them."""
    rows = [
        f"| `{q.name}` | {q.title} | {q.unit} | {q.formula.replace('|', chr(92) + '|')} |"
        for statistic in (*DEFAULT, *map(target, DEFAULT_TARGETS), token_class(CLASSES))
        for q in statistic.quantities
    ]
    table = ["| name | what | unit | formula |", "|---|---|---|---|", *rows]
    source[0] = source[0].replace("<!-- statistics -->", "\n".join(table))


def setup(app):
    """Connect the list of statistics."""
    app.connect("source-read", list_statistics)
