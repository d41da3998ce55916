"""Sink set aside, brushing, keys, the address, examples and copies, in a real Chromium."""

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest

from report.browsing import cell, pixels, selected
from report.reading import floats, stat

pytestmark = pytest.mark.browser


def test_the_sink_set_aside_changes_maps_numbers_and_words(visit):
    with visit("deep", "#L4.H1") as page:
        h = page.data["names"].index("L4.H1")
        before = pixels(page, "$('bigmap')")
        page.locator("input[value='texts/previous']").check()
        plain = page.locator(f"#heads .cell[data-i='{h}']").get_attribute("data-v")
        page.locator("input[name=sink][value=out]").check()
        assert pixels(page, "$('bigmap')") != before
        left = 1 - floats(stat(page.data, "texts/sink")["values"])[h]
        note = page.locator("#card figure h3 span").first.text_content().strip()
        assert note == f"of the {np.floor(left * 1000 + 0.5) / 10:.1f}% not on the first token"
        shown = page.locator(f"#heads .cell[data-i='{h}']").get_attribute("data-v")
        aside = floats(stat(page.data, "texts/previous_content")["values"])[h]
        assert shown == f"{np.floor(aside * 1000 + 0.5) / 10:.1f}%" != plain
        assert page.locator("#heads .cell canvas").count() == 60
        assert "sink set aside" in page.locator("#dots").get_attribute("aria-label")
        page.locator("input[name=sink][value=in]").check()
        assert page.locator("#heads .cell canvas").count() == 0
        assert pixels(page, "$('bigmap')") == before


def test_a_map_fades_where_little_is_left(visit):
    with visit("deep") as page:
        strength = page.evaluate("""() => HEADS.map(h => { S.sink = "out"; return [1 - sinkOf(h), faded(h)]; })""")
        assert any(left < 0.1 for left, _ in strength)
        for left, fade in strength:
            assert fade == pytest.approx(1.0 if left >= 0.1 else left / 0.1, abs=1e-4)


def test_both_maps_are_what_was_measured(visit):
    with visit("wide") as page:
        rows = page.evaluate("HEADS.map(h => [mapOf(h, false), mapOf(h, true)])")
        from report.browsing import RECORDS

        texts = RECORDS["wide"]().texts
        for kind, name in enumerate(("pooled_map", "pooled_map_content")):
            got = np.array([row[kind] for row in rows]).reshape(24, 32, 32)
            assert np.abs(got - texts.value(name)).max() < 0.02


def test_keys_of_the_grid(visit):
    with visit("wide") as page:
        start = selected(page)
        cell(page, start).focus()
        kinds = {n: h[4] for n, h in zip(page.data["names"], page.data["heads"], strict=True)}
        same = [n for n in page.data["names"] if kinds[n] == kinds[start]]
        for k in range(1, len(same) + 1):
            page.keyboard.press("n")
            assert selected(page) == same[(same.index(start) + k) % len(same)]
        page.keyboard.press("s")
        assert page.locator("input[name=sink][value=out]").is_checked()
        page.keyboard.press("s")
        assert page.locator("input[name=sink][value=in]").is_checked()
        page.locator("input[value=rank]").check()
        cell(page, selected(page)).focus()
        for side in ("out", "in"):
            page.keyboard.press("s")
            assert page.locator(f"input[name=sink][value={side}]").is_checked()
            assert page.evaluate("document.activeElement.id") == selected(page)
        page.locator("#table summary").focus()
        page.keyboard.press("s")
        assert page.locator("input[name=sink][value=in]").is_checked()


def test_the_address_keeps_what_is_shown(visit):
    fragment = "#L1.H3&stat=texts/entropy_share&sink=out&filter=wide&order=rank&cell=dist"
    with visit("wide", fragment) as page:
        assert selected(page) == "L1.H3"
        for name, value in (("stat", "texts/entropy_share"), ("sink", "out"), ("order", "rank"), ("cell", "dist")):
            assert page.locator(f"input[name={name}][value='{value}']").is_checked()
        assert page.locator("h1 [data-filter=wide]").get_attribute("aria-pressed") == "true"
        assert page.locator("#heads .cell svg").count() == 24
        page.keyboard.press("Escape")
        page.locator("input[value=map]").check()
        assert page.evaluate("location.hash") == "#L1.H3&stat=texts/entropy_share&sink=out&order=rank"
        page.locator("#other").select_option("repeats/entropy")
        page.reload()
        assert page.locator("#other").input_value() == "repeats/entropy"
        assert selected(page) == "L1.H3"
    with visit("wide", "#L1.H3&stat=nonsense&sink=%E0%A4%A&filter=__proto__&ex=99&cell=map") as page:
        assert selected(page) == "L1.H3"
        assert page.locator("input[name=stat][value='']").is_checked()


def test_a_range_can_be_brushed_by_keys_and_by_hand(visit):
    with visit("wide") as page:
        page.locator("input[value='texts/entropy_share']").check()
        told = floats(stat(page.data, "texts/entropy_share")["values"])
        low = page.locator("[data-edge=low]")
        low.focus()
        for _ in range(3):
            page.keyboard.press("PageUp")
        edge = page.evaluate("S.brush[0]")
        assert 0 < edge < told.max()
        want = {n for n, v in zip(page.data["names"], told, strict=True) if v >= edge}
        assert set(page.locator("#heads .cell:not(.dim)").evaluate_all("all => all.map(e => e.id)")) == want
        assert page.evaluate("document.activeElement.dataset.edge") == "low"
        assert f"{len(want)} between" in page.locator("#dots").text_content()
        page.keyboard.press("Escape")
        assert page.locator("#heads .cell.dim").count() == 0
        box = page.locator("#dots").bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 3)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 3, steps=3)
        page.mouse.up()
        a, b = page.evaluate("S.brush")
        want = {n for n, v in zip(page.data["names"], told, strict=True) if a <= v <= b}
        assert set(page.locator("#heads .cell:not(.dim)").evaluate_all("all => all.map(e => e.id)")) == want
        page.mouse.click(box["x"] + 0.2 * box["width"], box["y"] + 3)
        assert page.locator("#heads .cell.dim").count() == 0


def test_twins_are_joined_by_staples(visit):
    with visit("deep") as page:
        told = page.locator(".twin").evaluate_all("all => all.map(e => D.families[e.dataset.family])")
        members = {h for family in page.data["families"] for h in family}
        assert {h for family in told for h in family} == members
        places = {tuple(page.data["heads"][h][:2]) for family in told for h in [family[0]]}
        assert all(len({tuple(page.data["heads"][h][:2]) for h in family}) == 1 for family in told)
        assert places
        page.locator("h1 [data-filter=twin]").click()
        assert page.locator("#heads .cell:not(.dim)").count() == len(members)
        assert page.locator(".twin.on").count() == len(told)


def test_the_card_tells_words_and_the_numbers_behind_them(visit):
    with visit("deep") as page:
        rules = page.data["rules"]
        for name, h in zip(page.data["names"], page.data["heads"], strict=True):
            rule = rules[h[4]]
            if rule["key"] == "induction":
                cell(page, name).click()
                value = floats(rule["values"])[page.data["names"].index(name)]
                text = page.locator("#card .fact").inner_text()
                assert text.startswith(
                    f"looks like: continues a repeat ({np.floor(value * 1000 + 0.5) / 10:.1f}%, an even spread"
                )
                break
        assert "Shares its keys and values with" in page.locator("#card").inner_text()
        alike = page.locator("#card .alike button")
        assert alike.count() == 3
        other = alike.first.locator("b").inner_text()
        alike.first.click()
        assert selected(page) == other


def test_the_example_is_the_telling_one_until_the_reader_chooses(visit):
    with visit("wide") as page:
        for name in page.data["names"][:6]:
            cell(page, name).click()
            best = page.data["best"][page.data["names"].index(name)]
            assert page.locator("input[name=ex]:checked").get_attribute("value") == str(best)
        page.locator("input[name=ex][value='1']").check()
        cell(page, "L2.H2").click()
        assert page.locator("input[name=ex]:checked").get_attribute("value") == "1"


def test_a_word_tells_its_weights_by_keys_and_by_pointing(visit):
    with visit("wide", "#L0.H0&ex=0") as page:
        page.locator("#arcs").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        links = page.evaluate("linksOf(D.examples[0], S.head)[2]")
        said = page.locator("#spoken").inner_text()
        assert re.sub("[\u2068\u2069]", "", said).startswith("and: ")
        words = page.data["examples"][0]["words"]
        for place, weight in links["links"]:
            assert f"\u2068{words[place]}\u2069 {round(100 * weight)}%" in said
        page.keyboard.press("End")
        assert page.locator("#arcs .w.on").get_attribute("data-w") == str(len(words) - 1)
        page.keyboard.press("Escape")
        assert page.locator("#arcs .w.on").count() == 0
        page.locator("#table summary").focus()
        page.locator("#arcs [data-w='4']").hover()
        assert page.locator("#spoken").inner_text().startswith("\u2068went\u2069: ")


def test_text_from_right_to_left_long_lines_and_emoji(visit):
    with visit("wide", "#L0.H0&ex=1") as page:
        at = page.locator("#arcs text.word").evaluate_all("all => all.map(e => Number(e.getAttribute('x')))")
        assert at == sorted(at, reverse=True)
        page.locator("input[name=ex][value='2']").check()
        rows = page.locator("#arcs text.word").evaluate_all("all => all.map(e => e.getAttribute('y'))")
        assert len(set(rows)) > 1
        box = page.locator("#arcs").bounding_box()
        ends = page.locator("#arcs text.word").evaluate_all("all => all.map(e => e.getBoundingClientRect().right)")
        assert max(ends) <= box["x"] + box["width"] + 1
        text = page.locator("#arcs").text_content()
        assert "\U0001f469\u200d\U0001f4bb" in text
        assert text.endswith("⏎")


def test_patches_of_a_picture(visit):
    with visit("images") as page:
        assert page.locator("#arcs image").count() == 1
        assert page.locator("#arcs .patch").count() == 24
        page.locator("#arcs").focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        assert page.locator("#arcs .w.on").get_attribute("data-w") == "7"
        links = page.evaluate("linksOf(D.examples[0], S.head)[7].links")
        strength = page.locator("#arcs .patch").evaluate_all(
            "all => all.map(e => Number(e.getAttribute('fill-opacity')))"
        )
        assert sum(x > 0 for x in strength) == len(links) == 3
        assert "of 4 × 6" not in page.locator("#card").inner_text()


def test_moments_of_a_recording_and_words_across(visit):
    with visit("audio") as page:
        assert page.locator("#arcs image").count() == 1
        assert page.locator("#arcs .w").count() == 20
        cell(page, "cross.L0.H1").click()
        assert page.locator("#arcs .w").count() == 3
        assert page.locator("#arcs path").count() == 6
        page.locator("#arcs").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#spoken").inner_text().startswith("\u2068hello\u2069: \u20680.0 s\u2069 50%")


def test_numbers_and_card_can_be_copied(visit):
    with visit("wide", "#L0.H2") as page:
        rows = list(csv.reader(io.StringIO(page.evaluate("numbersAsCsv()"))))
        assert rows[0][:6] == ["head", "looks like", "measured on", "statistic", "unit", "value"]
        assert len(rows) == 1 + len(page.data["stats"])
        entropy = next(r for r in rows if r[2:4] == ["texts", "entropy"])
        assert float(entropy[5]) == pytest.approx(floats(stat(page.data, "texts/entropy")["values"])[2], rel=1e-5)
        svg = page.evaluate("cardAsSvg()")
        assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
        assert "var(" not in svg
        assert all(word in svg for word in ("L0.H2", "Average map", "data:image/png"))
        broken = page.evaluate(
            "s => new DOMParser().parseFromString(s, 'image/svg+xml').querySelector('parsererror') !== null", svg
        )
        assert not broken


@pytest.mark.parametrize("allowed", [True, False])
def test_the_grid_can_be_taken_as_a_picture(visit, allowed):
    """To the clipboard; as a file where the browser does not let us."""
    with visit("wide") as page:
        page.evaluate(
            """allowed => { window.got = []; navigator.clipboard.write = items => {
                if (!allowed) return Promise.reject(new Error("no"));
                got.push(...items[0].types); return Promise.resolve(); }; }""",
            allowed,
        )
        files = []
        page.on("download", lambda download: files.append(download.path()))
        page.get_by_text("grid as PNG").click()
        page.locator(".said:not(:empty)").wait_for()
        assert page.locator(".said").inner_text() == ("copied" if allowed else "saved as a file")
        assert page.evaluate("got") == (["image/png"] if allowed else [])
        if not allowed:
            page.wait_for_timeout(300)
            assert Path(files[0]).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_holding_a_key_draws_the_card_once_a_frame(visit):
    with visit("deep", "#L0.H0") as page:
        cell(page, "L0.H0").focus()
        drawn = page.evaluate(
            """async () => {
                let n = 0; const seen = new MutationObserver(() => { n += 1; });
                seen.observe($("card"), {childList: true});
                for (let i = 0; i < 8; i++) document.activeElement.dispatchEvent(
                    new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
                await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
                return n;
            }"""
        )
        assert selected(page) == "L8.H0"
        assert drawn <= 3


@pytest.mark.slow
def test_270_heads_load_within_a_second(window, written):
    """By the clock of the page's own thread: what else the machine does must not count."""
    took = []
    for _ in range(3):
        page = window()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(written("large")[0])
        told = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
        took.append(told["TaskDuration"])
        page.close()
    assert 0 < min(took) < 1
