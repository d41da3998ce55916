"""For every reader: contrast and labels by axe-core, the keyboard's route, dark, print, forced colours, no script."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from report.browsing import cell, selected

pytestmark = pytest.mark.browser


WANTED = ("theme", " stat", "other", " sink", " cell", " order", " induction", " twin", "arcs", " ex", "cell p",
          "SUMMARY rules", "SUMMARY table", "SUMMARY how")  # fmt: skip


@pytest.fixture(scope="session")
def axe():
    """The source of axe-core, which the page's policy lets in only from outside the page."""
    found = find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe-playwright-python, which brings axe-core, is not installed")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def faults(page, axe):
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (fault["id"], fault["help"], [node["html"][:150] for node in fault["nodes"][:3]])
        for fault in found["violations"]
    ]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("deep", "light"),
        *(
            pytest.param(name, scheme, marks=pytest.mark.slow)
            for name in ("deep", "compare", "zh")
            for scheme in ("dark", "light")
            if (name, scheme) != ("deep", "light")
        ),
        *(pytest.param(name, "light", marks=pytest.mark.slow) for name in ("stacks", "images", "audio", "old")),
    ],
)
def test_axe_finds_no_fault(visit, axe, name, scheme):
    with visit(name, color_scheme=scheme) as page:
        assert faults(page, axe) == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_by_a_statistic_with_everything_open(visit, axe, scheme):
    with visit("deep", "#L2.H1&stat=texts/entropy_share&sink=out&order=rank", color_scheme=scheme) as page:
        page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        page.locator("#everything").check()
        assert faults(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_ink_stand_out_from_every_ground(visit, scheme):
    """Contrast of each role's text on paper and ink on ground, and of each step of the scales."""
    with visit("one", color_scheme=scheme) as page:
        poor = page.evaluate(
            """() => {
                const linear = x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
                const light = c => [.2126, .7152, .0722].reduce((sum, k, i) => sum + k * linear(c[i] / 255), 0);
                const ratio = (a, b) => {
                    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
                    return (x + .05) / (y + .05);
                };
                const out = [], keys = [...new Set([...document.styleSheets[0].cssRules].map(
                    r => r.selectorText?.match(/^\\.r-(\\w+)$/)?.[1]).filter(Boolean))];
                for (const k of keys) {
                    const names = [`--${k}`, `--${k}-bg`, `--${k}-ink`, "--paper"];
                    const [text, ground, ink, paper] = names.map(v => resolve(`var(${v})`));
                    if (ratio(text, paper) < 4.4) out.push([k, "text", ratio(text, paper)]);
                    if (ratio(ink, ground) < 4.5) out.push([k, "ink", ratio(ink, ground)]);
                }
                return [keys.length, out];
            }"""
        )
        assert poor == [16, []]


def test_the_keyboard_alone_reaches_everything(visit):
    with visit("deep") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == selected(page)
        page.reload()
        reached = []
        for _ in range(90):
            page.keyboard.press("Tab")
            reached.append(page.evaluate(
                """(e => [e.id, e.name, e.dataset.filter, e.className, e.tagName, e.closest("details")?.id].join(" "))(
                    document.activeElement)"""
            ))  # fmt: skip
            if "BODY" in reached[-1]:
                break
        text = "\n".join(reached)
        for wanted in WANTED:
            assert wanted in text, wanted
        assert len(reached) < 90
        outline = "e => getComputedStyle(e).outlineStyle"
        cell(page, selected(page)).focus()
        page.keyboard.press("ArrowRight")
        assert page.locator(":focus").evaluate(outline) == "solid"


def test_names_for_a_screen_reader(visit):
    with visit("deep") as page:
        grid = page.get_by_role("grid", name="self heads, one row a layer")
        assert grid.get_by_role("row").count() == 10
        assert grid.get_by_role("gridcell").count() == 60
        assert page.get_by_role("row", name="layer 3").count() == 1
        for i in (0, 7, 59):
            label = cell(page, page.data["names"][i]).get_attribute("aria-label")
            assert label.startswith(page.data["names"][i] + ", ")
        unnamed = page.locator("svg[role=img], canvas[role=img]").evaluate_all(
            "all => all.filter(e => !e.ariaLabel).length"
        )
        assert unnamed == 0
        assert page.locator("#live").get_attribute("aria-live") == "polite"


def test_forced_colours_and_more_contrast(visit):
    with visit("wide", forced_colors="active") as page:
        assert cell(page, "L0.H0").locator("i").evaluate("e => getComputedStyle(e).forcedColorAdjust") == "none"
    with visit("wide", contrast="more") as page:
        muted = page.locator(".sub").first.evaluate("e => getComputedStyle(e).color")
        assert muted == page.evaluate("getComputedStyle(document.body).color")


def test_print_is_light_without_controls_and_whole(visit):
    with visit("wide", color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(252, 251, 248)"
        for hidden in ("#controls", "#theme", ".copy", ".start"):
            assert not page.locator(hidden).first.is_visible()
        assert page.locator("#card").is_visible()


@pytest.mark.parametrize("name", ["compare", "compare hostile"])
def test_the_page_of_two_records(visit, name):
    with visit(name) as page:
        first = page.locator("tbody a[href^='#a-']").first
        first.click()
        chosen = first.inner_text()
        pair = page.locator(".cell.pair").evaluate_all("all => all.map(e => e.id)")
        assert pair == [f"a-{chosen}", f"b-{chosen}"]
        page.locator(".cell[tabindex='0']").first.focus()
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.id") == "a-" + page.data["names"][-1]
        if page.data["flips"]:
            page.locator("h1 [data-filter]").click()
            assert page.locator(".cell:not(.dim)").count() == 2 * len(page.data["flips"])
        page.keyboard.press("Escape")
        assert page.locator(".cell.dim").count() == 0
        for width in (1440, 900, 400):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("look", ["light", "dark", "print"])
def test_what_changed_does_not_look_like_what_is_chosen(visit, look):
    """A fold in the corner, not a frame: two shapes, so that colour does not matter."""
    with visit("compare", color_scheme="light" if look == "print" else look) as page:
        if look == "print":
            page.emulate_media(media="print")
        flips, names = page.data["flips"], page.data["names"]
        same = next(name for name in names if name not in flips)
        page.evaluate("name => choose(name)", same)
        drawn = """id => {
            const cell = document.getElementById(id);
            const own = getComputedStyle(cell), fold = getComputedStyle(cell, "::after");
            const folded = fold.content !== "none" && fold.backgroundImage.startsWith("linear-gradient");
            return [own.outlineStyle, folded, folded ? parseFloat(fold.width) : 0];
        }"""
        for side in "ab":
            for name in names:
                frame, folded, width = page.evaluate(drawn, f"{side}-{name}")
                assert (frame != "none") == (name == same)
                assert folded == (name in flips)
                assert width >= 13 or not folded
        told = page.locator(f"#a-{flips[0]}".replace(".", "\\.")).get_attribute("aria-label")
        assert told.endswith(", label changed")
        assert "folded corner: the label changed" in page.locator(".key").last.inner_text()
