"""What both kinds of page share: their files, their policy, and the grid of heads."""

import base64
import functools
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined, Template
from markupsafe import Markup

from multihead.report.number import cut

SCRIPTS = ("data.js", "draw.js", "chart.js", "grid.js", "legend.js", "card.js", "example.js", "copy.js", "hands.js")
"""Files of the page's script, joined in this order."""
LONGEST = 240
"""Characters of one text from outside that are shown."""
_REMARK = re.compile(r"\s{2,}// .*$")
"""A remark behind a line of script."""
_TEMPLATES = ("page.html.jinja", "grid.html.jinja", "compare.html.jinja")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One head of the grid.

    Args:
        address: Where it lives.
        key: Key of what it looks like: names its colour.
        word: The words for it.
        marks: More classes of its element, each with a leading blank.
    """

    address: str
    key: str
    word: str
    marks: str


def policy(style: str, script: str) -> str:
    """The content security policy: nothing but this style, this script, and pictures inside the page."""
    return (
        "default-src 'none'; img-src data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def template(name: str) -> Template:
    """A template of the page."""
    return _environment().get_template(name)


@functools.cache
def page_file(name: str) -> str:
    """A file of the page."""
    return (files("multihead.report") / "page" / name).read_text(encoding="utf-8")


def join_scripts(*names: str) -> Markup:
    """The script of a page: one element, one hash; indents and lines of comment stay behind (no string spans lines)."""
    lines = (_REMARK.sub("", line).strip() for name in names for line in page_file(name).splitlines())
    return Markup("\n".join(line for line in lines if line and not line.startswith("//")))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def _shorten(text: str) -> str:
    return cut(str(text), LONGEST)


@functools.cache
def _environment() -> Environment:
    found = Environment(
        loader=DictLoader({name: page_file(name) for name in _TEMPLATES}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["cut"] = _shorten
    return found
