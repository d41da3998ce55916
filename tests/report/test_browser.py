"""The page in a real Chromium, from disk, without a network."""

from dataclasses import replace

import pytest

from multihead.report import render_page
from report.browsing import cell, selected
from report.reading import floats, stat
from report.samples import make_record
from report.test_page import EVIL

pytestmark = pytest.mark.browser


def values(page, wanted):
    """A statistic by head, as the page holds it."""
    return dict(zip(page.data["names"], floats(stat(page.data, wanted)["values"]).tolist(), strict=True))


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
        share = values(page, "texts/entropy_share")["L2.H5"]
        strips = page.locator("#card .last .strips")
        assert f"{share * 100:.1f}%" in strips.inner_text()
        # The word was judged with the sink set aside, and so is the number behind it.
        aside = values(page, "texts/previous_content")["L2.H5"]
        assert f"before, aside\n{aside * 100:.1f}%" in strips.inner_text()
        assert f"before\n{values(page, 'texts/previous')['L2.H5'] * 100:.1f}%" not in strips.inner_text()


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
        page.goto(page.url.split("#")[0] + "#0.7")
        assert selected(page) == "L0.H7"
        page.goto(page.url.split("#")[0] + "#L9.H99%")
        assert selected(page) == "L0.H7"
    with visit("stacks", "#cross.L1.H0") as page:
        assert selected(page) == "cross.L1.H0"


def test_columns_sort_up_and_down(visit):
    with visit("wide") as page:
        page.locator("#table summary").click()
        button = page.locator("[data-sort='texts/sink']")
        told = values(page, "texts/sink")
        for direction, downwards in (("descending", True), ("ascending", False)):
            button.click()
            rows = page.locator("tbody th a").all_inner_texts()
            assert rows == sorted(told, key=told.get, reverse=downwards)
            assert button.evaluate("e => e.parentElement.getAttribute('aria-sort')") == direction
            assert page.locator("th[aria-sort]").count() == 1
        page.locator("[data-sort=head]").click()
        assert page.locator("tbody th a").all_inner_texts() == page.data["names"]


def test_every_other_number_can_colour_the_grid(visit):
    with visit("stacks") as page:
        options = page.locator("#other option").evaluate_all("all => all.map(e => e.value)")
        first = [s["id"] for s in page.data["stats"] if "first" in s]
        plain = [s["id"] for s in page.data["stats"] if not stat(page.data, s["id"])["of"]]
        assert sorted([*options[1:], *first]) == sorted(plain)
        assert "texts/entropy" in options


def test_the_table_grows_to_all_numbers(visit):
    with visit("wide") as page:
        page.locator("#table summary").click()
        before = page.locator("thead th").count()
        page.locator("#everything").check()
        assert page.locator("thead th").count() == 2 + len(page.data["stats"])
        assert page.locator("tbody tr").first.locator("td").count() == 1 + len(page.data["stats"])
        page.locator("[data-sort='repeats/entropy']").click()
        told = values(page, "repeats/entropy")
        assert page.locator("tbody th a").all_inner_texts() == sorted(told, key=told.get, reverse=True)
        page.locator("#everything").uncheck()
        assert page.locator("thead th").count() == before


def test_colour_and_order_follow_a_statistic(visit):
    with visit("wide") as page:
        ground = "all => all.map(e => getComputedStyle(e).backgroundColor)"
        plain = page.locator("#heads .cell i").evaluate_all(ground)
        page.locator("#other").select_option("texts/entropy")
        assert page.locator("#dots").get_attribute("aria-label").startswith("24 heads by entropy: from ")
        coloured = page.locator("#heads .cell i").evaluate_all(ground)
        told = values(page, "texts/entropy")
        assert coloured != plain
        most = max(told.values())
        assert len({c for c, v in zip(coloured, told.values(), strict=True) if v == most}) == 1
        page.locator("input[value=rank]").check()
        ranked = page.locator("#heads .cell").evaluate_all("all => all.map(e => e.id)")
        assert ranked == sorted(told, key=told.get, reverse=True)
        assert page.locator(".ranks").is_visible()
        assert not page.locator(".layers").is_visible()
        shown = cell(page, ranked[0]).evaluate("e => ['::before', '::after'].map(p => getComputedStyle(e, p).content)")
        assert shown == [f'"{most:.2f}"', f'"{ranked[0]}"']
        cell(page, ranked[3]).click()
        for key, place in (("ArrowRight", 4), ("ArrowLeft", 3), ("End", -1), ("Home", 0)):
            page.keyboard.press(key)
            assert selected(page) == ranked[place]
        page.locator("input[value=layers]").check()
        assert page.locator("#heads .cell").evaluate_all("all => all.map(e => e.id)") == page.data["names"]


def test_a_count_in_the_sentence_shows_its_heads(visit):
    with visit("wide") as page:
        button = page.locator("h1 button[data-filter=previous]")
        button.click()
        rule = next(i for i, r in enumerate(page.data["rules"]) if r["key"] == "previous")
        wanted = {n for n, h in zip(page.data["names"], page.data["heads"], strict=True) if h[4] == rule}
        assert set(page.locator("#heads .cell:not(.dim)").evaluate_all("all => all.map(e => e.id)")) == wanted
        assert button.inner_text() == str(len(wanted))
        assert button.get_attribute("aria-pressed") == "true"
        assert page.locator("#legend button[data-filter=previous]").get_attribute("aria-pressed") == "true"
        assert page.evaluate("location.hash").endswith("filter=previous")
        page.keyboard.press("Escape")
        assert page.locator(".cell.dim").count() == 0
        page.locator("#legend button[data-filter=wide]").click()
        assert page.locator("#heads .cell.dim").count() > 0


def test_the_script_prints_numbers_as_the_table_does(visit):
    with visit("stacks") as page:
        different = page.evaluate(
            """() => {
                const out = []; let column = 2;
                for (const s of D.stats.filter(s => s.first)) {
                    for (const [i, row] of ROWS) {
                        const [a, b] = [row.cells[column].textContent.trim(), show(s.values[i], s.unit)];
                        if (a !== b) out.push([s.id, i, a, b]);
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
                const c = $("bigmap");
                const alpha = [...c.getContext("2d").getImageData(0, 0, 32, 32).data].filter((_, i) => i % 4 === 3);
                return [alpha.map(x => x > 0), mapOf(D.names.indexOf("L4.H1")).map(v => !isNaN(v))];
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
        assert page.get_by_text("mean over rows of entropy", exact=True).first.is_visible()
        assert not page.locator("#controls").is_visible()
        assert not page.locator("#card").is_visible()
        box = cell(page, "L0.H0").bounding_box()
        assert (box["width"], box["height"]) == (96, 96)
        page.emulate_media(forced_colors="none")
        picture = cell(page, "L0.H0").screenshot()
        assert len(set(picture)) > 50
        assert picture != cell(page, "L0.H1").screenshot()


@pytest.mark.parametrize(
    "name", ["deep", "hostile", *(pytest.param(name, marks=pytest.mark.slow) for name in ("wide", "stacks"))]
)
def test_nothing_scrolls_sideways(visit, name):
    with visit(name) as page:
        page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        page.locator("[name=stat]").nth(4).check()
        for width in (1440, 1100, 900, 400):
            page.set_viewport_size({"width": width, "height": 900})
            for order in ("rank", "layers"):
                page.locator(f"input[value={order}]").check()
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, order)


def test_texts_from_outside_do_no_harm(visit):
    with visit("hostile") as page:
        assert page.title().startswith("</script><script>alert(1)</script>")
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 2
        page.locator("[name=stat]").nth(3).check()
        cell(page, "L1.H2").click()
        assert EVIL[:30] in page.locator("#arcs").text_content()
        page.locator("#card .more summary").click()
        page.locator("#card .more .strip").first.wait_for()
        assert EVIL[:30] in page.locator("#card .more").text_content()


@pytest.mark.parametrize("name", ["one", "bare", "old"])
def test_small_and_bare_records_have_a_page(visit, name):
    with visit(name) as page:
        cell(page, page.data["names"][-1]).click()
        assert selected(page) == page.data["names"][-1]
        assert page.locator("#bigmap").count() == (name != "bare")


@pytest.mark.slow
def test_a_thousand_heads(visit):
    with visit("thousand") as page:
        page.locator("input[value='texts/output_ratio']").check()
        page.locator("input[value=out]").check()
        page.locator("#heads .cell canvas").nth(999).wait_for(state="attached")
        page.locator("input[value=rank]").check()
        cell(page, "L24.H39").click()
        page.keyboard.press("ArrowLeft")
        page.evaluate("sort(document.querySelector('[data-sort=\"texts/self\"]'))")
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
    page.locator("#other").select_option("texts/entropy")
    page.locator("input[value=rank]").check()
    names = page.locator("#heads .cell").evaluate_all("all => all.map(e => e.id)")
    hatched = page.locator(".cell.na").evaluate_all("all => all.map(e => e.id)")
    told = cell(page, "L0.H1").get_attribute("aria-label")
    legend = page.locator("#legend").text_content()
    page.close()
    assert (names[-1], hatched, told) == ("L0.H1", ["L0.H1"], "L0.H1, entropy –")
    assert "1 without a value" in legend
