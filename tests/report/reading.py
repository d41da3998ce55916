"""Read a page back: its data, its table, its tags."""

import base64
import json
from html.parser import HTMLParser

import numpy as np


class Reader(HTMLParser):
    """Tags, attributes, rows of the table and texts by element of one page; fails on nothing, records everything."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts, self.rows, self.scripts = [], [], [], [], []
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._open = tag
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("script", "style"):
            self.scripts.append([tag, dict(attrs).get("type"), ""])

    def handle_data(self, data):
        if self._open in ("script", "style"):
            self.scripts[-1][2] += data
            return
        self.texts.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()

    def handle_endtag(self, tag):
        self._open = ""
        if tag == "table":
            self.rows.append([])

    @property
    def text(self):
        return "".join(self.texts)

    @property
    def body_rows(self):
        """Rows of the table's body: one a head."""
        return [row for row in self.rows if row and row[0] and not row[0].startswith(("on the", "head"))]


def data_of(page):
    return json.loads(next(s[2] for s in Reader(page).scripts if s[1] == "application/json"))


def floats(text):
    """Numbers of a statistic or a rule, as the page's script reads them."""
    return np.frombuffer(base64.b64decode(text), "<f4").astype(float)


def ends(packed, heads):
    """Lower and upper ends of an interval, (2, heads)."""
    steps = np.frombuffer(base64.b64decode(packed["data"]), "<u2").reshape(heads, 2).T.astype(float)
    values = packed["low"] + (packed["high"] - packed["low"]) * steps / 65534
    return np.where(steps == 65535, np.nan, values)


def stat(data, wanted):
    """One statistic of a page by its id."""
    own = next(s for s in data["stats"] if s["id"] == wanted)
    first = next(s for s in data["stats"] if s["id"].split("/")[1] == wanted.split("/")[1])
    shared = {k: first[k] for k in ("of", "even", "unit", "title") if k in first}
    return {"of": "", "even": "", "unit": "", "ends": None} | shared | own


def unpack(packed, heads):
    """The numbers of a packed array, (heads, stored places), by the formula the page states."""
    steps = np.frombuffer(base64.b64decode(packed["data"]), np.uint8).reshape(heads, -1).astype(float)
    values = packed["low"] + (packed["high"] - packed["low"]) * (steps / 254) ** packed["power"]
    return np.where(steps == 255, np.nan, values)
