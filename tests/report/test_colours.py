"""Roles can be told apart by those who see two primaries, and by those who see no colour at all."""

import itertools
import re

import numpy as np
import pytest

from multihead.measure.role import rules_for
from multihead.report.shell import page_file
from report.browsing import cell
from report.colours import SIGHT, ciede2000, grounds, lab

FLOOR = 8.0
"""Least CIEDE2000 between the grounds of two roles that one page can show. A step that is just seen is about 1, of
large patches side by side; cells lie apart and carry ink, so each role has its letter besides."""


def distances(reads, theme, sight):
    """Pairs of roles that a page of this kind can show, the closest first."""
    ground = grounds(page_file("page.css"), theme)
    keys = [*(rule.key for rule in rules_for(reads)), "none"]
    pairs = itertools.combinations(keys, 2)
    return sorted((ciede2000(lab(ground[a], sight), lab(ground[b], sight)), a, b) for a, b in pairs)


# Sharma, Wu & Dalal 2005, table 1: pairs 1, 7, 9, 13, 17, 19, 25, 33.
@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0009), 7.1792),
        ((50.0, -0.001, 2.49), (50.0, 0.0009, -2.49), 4.8045),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((50.0, 2.5, 0.0), (56.0, -27.0, -3.0), 31.9030),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((6.7747, -0.2908, -2.4247), (5.8714, -0.0985, -2.2286), 0.6377),
    ],
)
def test_the_distance_is_the_published_one(one, other, want):
    assert ciede2000(one, other) == pytest.approx(want, abs=6e-5)
    assert ciede2000(other, one) == pytest.approx(want, abs=6e-5)


def test_colours_are_read_as_published():
    assert lab("#ffffff") == pytest.approx((100, 0, 0), abs=0.02)
    assert lab("#ff0000") == pytest.approx((53.24, 80.09, 67.20), abs=0.02)
    for sight, matrix in SIGHT.items():
        # Whoever misses a primary still sees greys as greys.
        assert np.array(matrix).sum(axis=1) == pytest.approx((1, 1, 1), abs=1e-3), sight
        assert lab("#808080", sight)[1:] == pytest.approx((0, 0), abs=0.1)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("reads", ["text", "images", "audio"])
def test_roles_on_one_page_keep_their_distance(reads, theme, sight):
    closest = distances(reads, theme, sight)[0]
    assert closest[0] >= FLOOR, closest


def test_every_role_has_a_sign_of_its_own():
    style = page_file("page.css")
    sign = dict(re.findall(r"\.r-(\w+)\{--sign:\"([^\"]*)\"", style))
    for reads in ("text", "images", "audio"):
        mine = [sign[rule.key] for rule in rules_for(reads)]
        assert all(len(one) == 1 and one.strip() for one in mine)
        assert len(set(mine)) == len(mine)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["deep", "images"])
def test_heads_carry_the_sign_of_their_role_while_they_carry_its_colour(visit, name):
    content = "e => getComputedStyle(e, '::before').content.replaceAll('\"', '')"
    with visit(name) as page:
        sign = {
            key: page.locator(f"#rules .r-{key}").evaluate(content) for key in (r["key"] for r in page.data["rules"])
        }
        for address, head in zip(page.data["names"], page.data["heads"], strict=True):
            key = page.data["rules"][head[4]]["key"]
            assert cell(page, address).locator("i").evaluate(content) == ("none" if key == "none" else sign[key])
        for block in page.locator("#legend .block").all():
            key = block.get_attribute("data-filter")
            assert block.locator(".sign").evaluate(content) == sign[key]
        page.locator("[name=stat]").nth(2).check()
        assert {c.evaluate(content) for c in page.locator("#heads .cell i").all()} == {"none"}


@pytest.mark.browser
def test_a_head_beside_another_keeps_its_own_sign(visit):
    """The card has the sign of its head, which must not run down into the heads most like it."""
    with visit("deep") as page:
        none = next(i for i, rule in enumerate(page.data["rules"]) if rule["key"] == "none")
        heads, seen = page.data["heads"], 0
        for h, name in enumerate(page.data["names"]):
            if heads[h][4] != none and seen < 3:
                cell(page, name).click()
                for twin in page.locator("#card .alike .cell.r-none i").all():
                    seen += 1
                    assert twin.evaluate("e => getComputedStyle(e, '::before').content") == "none"
        assert seen
