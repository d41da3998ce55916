"""The page in a real Chromium, from disk, without a network."""

import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest

from multihead.report import render_page
from report.reading import data_of
from report.samples import make_record, thousand_heads
from report.test_page import EVIL, speaking, without

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    f"--{flag}"
    for flag in ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
                 "disable-component-update", "disable-sync")
]  # fmt: skip
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the path"),
]
RECORDS = {
    "wide": lambda: make_record(3, 8, name="wide-model"),
    "deep": lambda: make_record(10, 6, group=3, causal=True, name="deep-model"),
    "stacks": lambda: make_record(2, 4, stacks=("encoder", "decoder", "cross"), name="two-sided"),
    "one": lambda: make_record(1, 1, repeats=False, documents=("a",)),
    "bare": lambda: without(make_record(2, 3, repeats=False), "pooled_map", "token_class", "offsets", "received"),
    "hostile": lambda: speaking(EVIL),
}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write a page once; the path and what the page holds."""
    folder, done = tmp_path_factory.mktemp("pages"), {}

    def write(name):
        if name not in done:
            page = thousand_heads() if name == "thousand" else render_page(RECORDS[name]())
            path = folder / f"{name}.html"
            path.write_text(page, encoding="utf-8")
            done[name] = path.as_uri(), data_of(page)
        return done[name]

    return write


@pytest.fixture(scope="module")
def window(browser):
    """Windows by their options, each made once."""
    made = {}

    def window(**options):
        key = tuple(options.items())
        if key not in made:
            made[key] = browser.new_context(offline=True, service_workers="block", **options)
        return made[key].new_page()

    return window


@pytest.fixture
def visit(window, written):
    """Open a page; afterwards it must have asked for nothing but itself and complained of nothing."""

    @contextmanager
    def visit(name, fragment="", **options):
        address, data = written(name)
        asked, complaints = [], []
        page = window(**options)
        page.set_viewport_size({"width": 1440, "height": 900})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.goto(address + fragment)
        page.data = data
        yield page
        page.close()
        own = [url for url in asked if not url.startswith("data:image/png;base64,")]
        assert {url.split("#")[0] for url in own} == {address}
        assert complaints == []

    return visit


def selected(page):
    """The chosen head as the grid, the card and the address tell it."""
    cells = page.locator(".cell[aria-selected=true]").evaluate_all("all => all.map(e => e.id)")
    assert len(cells) == 1
    assert page.locator("#card h2").evaluate("e => e.firstChild.textContent") == cells[0]
    assert page.locator(".cell[tabindex='0']").evaluate_all("all => all.map(e => e.id)") == cells
    assert page.locator("tbody tr.on a").evaluate_all("all => all.map(e => e.textContent)") == cells
    return cells[0]


def cell(page, address):
    return page.locator(f'.cell[id="{address}"]')


def test_the_policy_stops_what_would_leave_the_page(window, written):
    page = window()
    page.goto(written("one")[0])
    stopped = page.evaluate(
        """async () => {
            const seen = []; document.addEventListener("securitypolicyviolation", e => seen.push(e.effectiveDirective));
            await fetch("https://example.org/").catch(() => 0);
            document.body.insertAdjacentHTML("beforeend", "<img src=https://example.org/x.png><p style='color:red'>");
            const script = document.createElement("script"); script.textContent = "window.ran = 1";
            document.body.append(script);
            await new Promise(done => setTimeout(done, 100));
            return [seen.sort(), window.ran ?? null];
        }"""
    )
    page.close()
    assert stopped == [["connect-src", "img-src", "script-src-elem", "style-src-attr"], None]


def test_a_click_chooses_a_head(visit):
    with visit("wide") as page:
        before = page.locator("#card").inner_html()
        cell(page, "L2.H5").click()
        assert selected(page) == "L2.H5"
        assert page.evaluate("location.hash") == "#L2.H5"
        assert page.locator("#live").inner_text().startswith("L2.H5, ")
        assert page.locator("#card").inner_html() != before
        values = page.data["parts"]["texts"]["values"]
        entropy = values["entropy"][page.data["names"].index("L2.H5")]
        assert f"{entropy:.2f} nats" in page.locator("#card .strips").inner_text()


@pytest.mark.parametrize(
    ("name", "start", "steps"),
    [
        ("wide", "L1.H2", "Right L1.H3 Down L2.H3 Left L2.H2 Up L1.H2 Home L1.H0 Left L1.H0 End L1.H7 Right L1.H7"),
        ("wide", "L1.H2", "Control+Home L0.H0 Up L0.H0 Control+End L2.H7 Down L2.H7"),
        ("deep", "L1.H2", "Right L2.H2 Down L2.H3 Left L1.H3 Up L1.H2 Home L0.H2 End L9.H2 Right L9.H2"),
        ("stacks", "encoder.L1.H3", "Down decoder.L0.H3 Right decoder.L0.H3 End decoder.L0.H3 Home decoder.L0.H0"),
    ],
)
def test_arrows_move_the_choice_and_the_focus(visit, name, start, steps):
    with visit(name) as page:
        cell(page, start).click()
        keys, ends = steps.split()[0::2], steps.split()[1::2]
        for key, end in zip(keys, ends, strict=True):
            page.keyboard.press(key if "Home" in key or "End" in key else f"Arrow{key}")
            assert selected(page) == end
            assert page.evaluate("document.activeElement.id") == end


def test_the_keyboard_alone_reaches_the_grid(visit):
    with visit("wide") as page:
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == selected(page)


def test_a_link_chooses_its_head(visit):
    with visit("wide", "#L2.H3") as page:
        assert selected(page) == "L2.H3"
        page.locator(".start a").last.click()
        assert selected(page) == page.locator(".start a").last.inner_text()
        page.goto(page.url.split("#")[0] + "#L0.H7")
        assert selected(page) == "L0.H7"
        page.goto(page.url.split("#")[0] + "#L9.H99%")
        assert selected(page) == "L0.H7"
    with visit("stacks", "#cross.L1.H0") as page:
        assert selected(page) == "cross.L1.H0"


def test_columns_sort_up_and_down(visit):
    with visit("wide") as page:
        page.locator("#table summary").click()
        button = page.locator("[data-sort=entropy][data-part=texts]")
        values = dict(zip(page.data["names"], page.data["parts"]["texts"]["values"]["entropy"], strict=True))
        for direction, downwards in (("descending", True), ("ascending", False)):
            button.click()
            rows = page.locator("tbody th a").all_inner_texts()
            assert rows == sorted(values, key=values.get, reverse=downwards)
            assert button.evaluate("e => e.parentElement.getAttribute('aria-sort')") == direction
            assert page.locator("th[aria-sort]").count() == 1
        page.locator("[data-sort=head]").click()
        assert page.locator("tbody th a").all_inner_texts() == page.data["names"]


def test_colour_and_order_follow_a_statistic(visit):
    with visit("wide") as page:
        plain = page.locator(".cell i").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
        page.locator("input[value=entropy]").check()
        assert page.locator("#legend").get_attribute("aria-label").startswith("24 heads by entropy: from ")
        coloured = page.locator(".cell i").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
        values = page.data["parts"]["texts"]["values"]["entropy"]
        assert coloured != plain
        assert len({c for c, v in zip(coloured, values, strict=True) if v == max(values)}) == 1
        page.locator("input[value=ranked]").check()
        ranked = page.locator(".cell").evaluate_all("all => all.map(e => e.id)")
        by_name = dict(zip(page.data["names"], values, strict=True))
        assert ranked == sorted(by_name, key=by_name.get, reverse=True)
        assert page.locator(".ranks").is_visible()
        assert not page.locator(".layers").is_visible()
        cell(page, ranked[3]).click()
        for key, place in (("ArrowRight", 4), ("ArrowLeft", 3), ("End", -1), ("Home", 0)):
            page.keyboard.press(key)
            assert selected(page) == ranked[place]
        page.locator("input[value=layers]").check()
        assert page.locator(".cell").evaluate_all("all => all.map(e => e.id)") == page.data["names"]


def test_the_repeats_have_their_own_numbers(visit):
    with visit("wide") as page:
        strips = page.locator("#card .strips").inner_text()
        page.locator("input[value=repeats]").check()
        assert page.locator("#card .strips").inner_text() != strips
        assert "on the repeats" in page.locator("#card h2").inner_text()
        induction = page.data["parts"]["repeats"]["values"]["induction"][page.data["first"]]
        assert f"{induction * 100:.0f}" in page.locator("#card .strips").inner_text()


def test_a_count_in_the_sentence_shows_its_heads(visit):
    with visit("wide") as page:
        button = page.locator("button[data-filter=previous]")
        button.click()
        rule = next(i for i, r in enumerate(page.data["rules"]) if r["key"] == "previous")
        wanted = {n for n, h in zip(page.data["names"], page.data["heads"], strict=True) if h[4] == rule}
        assert set(page.locator(".cell:not(.dim)").evaluate_all("all => all.map(e => e.id)")) == wanted
        assert button.inner_text() == str(len(wanted))
        assert button.get_attribute("aria-pressed") == "true"
        page.keyboard.press("Escape")
        assert page.locator(".cell.dim").count() == 0


def test_the_script_prints_numbers_as_the_table_does(visit):
    with visit("stacks") as page:
        different = page.evaluate(
            """() => {
                const out = []; let column = 2;
                for (const [part, p] of Object.entries(D.parts)) for (const q of p.quantities) {
                    for (const [i, row] of ROWS) {
                        const [a, b] = [row.cells[column].textContent.trim(), show(p.values[q.name][i], q.unit)];
                        if (a !== b) out.push([part, q.name, i, a, b]);
                    }
                    column++;
                }
                const examples = {.125: "0.13", 2.5: "2.50", 12345.6: "12,346", 4e-4: "4.0e-4", 3e9: "3.0e9"};
                for (const [v, text] of Object.entries(examples).map(([v, t]) => [Number(v), t]))
                    if (show(v, "nats") !== text) out.push([v, text, show(v, "nats")]);
                return out;
            }"""
        )
        assert different == []


def test_the_large_map_shows_what_the_head_can_see(visit):
    with visit("deep", "#L4.H1") as page:
        alpha, want = page.evaluate(
            """() => {
                const c = $("bigmap"), a = D.parts.texts.arrays.pooled_map;
                const alpha = [...c.getContext("2d").getImageData(0, 0, 32, 32).data].filter((_, i) => i % 4 === 3);
                return [alpha.map(x => x > 0), array(a, D.names.indexOf("L4.H1")).map(v => !isNaN(v))];
            }"""
        )
        assert alpha == want
        assert alpha == [j <= i for i in range(32) for j in range(32)]


@pytest.mark.parametrize("name", ["wide", "deep"])
def test_dark_and_light(visit, name):
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    big_map = "$('bigmap').toDataURL()"
    with visit(name, color_scheme="dark") as page:
        dark = page.evaluate(ground), page.evaluate(big_map)
        assert dark[0] == "rgb(20, 21, 24)"
        assert page.locator(".cell i").first.evaluate("e => getComputedStyle(e, '::after').filter") == "invert(1)"
        page.locator("#theme").click()
        assert page.evaluate(ground) == "rgb(252, 251, 248)"
        assert page.evaluate(big_map) != dark[1]
        page.locator("#theme").click()
        assert (page.evaluate(ground), page.evaluate(big_map)) == dark
        page.emulate_media(media="print")
        assert page.evaluate(ground) == "rgb(252, 251, 248)"
        assert not page.locator("#controls").is_visible()


def test_without_script_the_grid_and_the_table_are_there(visit):
    with visit("wide", java_script_enabled=False) as page:
        assert page.locator(".cell").count() == 24
        assert all(box.is_visible() for box in page.locator(".cell").all())
        assert page.locator("tbody tr").last.is_visible()
        assert page.get_by_text("mean over rows of entropy", exact=True).is_visible()
        assert not page.locator("#controls").is_visible()
        assert not page.locator("#card").is_visible()
        box = cell(page, "L0.H0").bounding_box()
        assert (box["width"], box["height"]) == (96, 96)
        page.emulate_media(forced_colors="none")
        picture = cell(page, "L0.H0").screenshot()
        assert len(set(picture)) > 50
        assert picture != cell(page, "L0.H1").screenshot()


@pytest.mark.parametrize("name", ["wide", "deep", "stacks", "hostile"])
def test_nothing_scrolls_sideways(visit, name):
    with visit(name) as page:
        page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        page.locator("[name=colour]").nth(4).check()
        for width in (1440, 1100, 900, 400):
            page.set_viewport_size({"width": width, "height": 900})
            for order in ("ranked", "layers"):
                page.locator(f"input[value={order}]").check()
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, order)


def test_texts_from_outside_do_no_harm(visit):
    with visit("hostile") as page:
        assert page.title().startswith("</script><script>alert(1)</script>")
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 2
        page.locator("[name=colour]").nth(3).check()
        assert EVIL[:50] in page.locator("#legend").text_content()
        cell(page, "L1.H2").click()
        assert EVIL in page.locator("#card").text_content()


@pytest.mark.parametrize("name", ["one", "bare"])
def test_small_and_bare_records_have_a_page(visit, name):
    with visit(name) as page:
        cell(page, page.data["names"][-1]).click()
        assert selected(page) == page.data["names"][-1]
        assert page.locator("#bigmap").count() == (name == "one")
        assert page.locator("[name=part]").count() == 0


@pytest.mark.slow
def test_a_thousand_heads(visit):
    with visit("thousand") as page:
        page.locator("input[value=output_ratio]").check()
        page.locator("input[value=ranked]").check()
        cell(page, "L24.H39").click()
        page.keyboard.press("ArrowLeft")
        page.evaluate("sort(document.querySelector('[data-sort=self]'))")
        assert selected(page) != "L24.H39"
        assert page.locator(".ranks .cell").count() == 1000
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_a_missing_value_is_hatched_and_ranked_last(window, tmp_path):
    record = make_record(1, 4, repeats=False, documents=("a",))
    counts = dict(record.texts.counts)
    counts["entropy"] = counts["entropy"].copy()
    counts["entropy"][0, 1] = 0
    path = tmp_path / "page.html"
    path.write_text(render_page(replace(record, texts=replace(record.texts, counts=counts))), encoding="utf-8")
    page = window()
    page.goto(path.as_uri())
    page.locator("input[value=entropy]").check()
    page.locator("input[value=ranked]").check()
    names = page.locator(".cell").evaluate_all("all => all.map(e => e.id)")
    hatched = page.locator(".cell.na").evaluate_all("all => all.map(e => e.id)")
    told = cell(page, "L0.H1").get_attribute("aria-label")
    legend = page.locator("#legend").text_content()
    page.close()
    assert (names[-1], hatched, told) == ("L0.H1", ["L0.H1"], "L0.H1, entropy –")
    assert "1 without a value" in legend
