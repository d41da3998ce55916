"""Pages for the browser, by name, and how to look at them."""

import base64
from dataclasses import replace

import numpy as np

from multihead.record import Example
from multihead.report import render_comparison, render_page
from multihead.report.sprite import draw_sprite
from report.samples import make_record, thousand_heads
from report.test_page import EVIL, speaking, without

FLAGS = [
    f"--{flag}"
    for flag in ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
                 "disable-component-update", "disable-sync")
]  # fmt: skip


def pictured():
    """A model that reads images: 4 x 6 patches on a picture."""
    record = make_record(2, 4, repeats=False, documents=("cat.png",), name="seeing")
    rng, shape = np.random.default_rng(0), (8, 24, 3)
    example = Example(
        document=0,
        start=1,
        stack="",
        heads=tuple(range(8)),
        queries=tuple(f"{r},{c}" for r in range(4) for c in range(6)),
        keys=tuple(f"{r},{c}" for r in range(4) for c in range(6)),
        places=rng.permuted(np.tile(np.arange(24, dtype=np.int16), (8, 24, 1)), axis=2)[..., :3],
        weights=np.broadcast_to(np.array([0.4, 0.2, 0.1], dtype=np.float32), shape).copy(),
        sink=np.full(shape[:2], 0.2, dtype=np.float32),
        elsewhere=np.full(shape[:2], 0.1, dtype=np.float32),
        grid=(4, 6),
        picture=draw_sprite(rng.integers(0, 15, (1, 40, 60)).astype(np.uint8)),
    )
    return replace(record, reads="images", texts=replace(record.texts, examples=(example,)))


def heard():
    """A model with an encoder of sound and a decoder: moments under a spectrogram, and words across to moments."""
    record = make_record(1, 3, stacks=("encoder", "cross"), repeats=False, documents=("a.wav",), name="hearing")
    picture = draw_sprite(np.random.default_rng(0).integers(0, 15, (1, 20, 80)).astype(np.uint8))
    moments = tuple(f"{k / 10:.1f} s" for k in range(20))

    def example(stack, heads, queries):
        shape = (3, len(queries), 2)
        places = np.tile(np.arange(len(queries), dtype=np.int16)[None, :, None], (3, 1, 2))
        places[..., 1] = np.clip(places[..., 1] + 2, 0, 19)
        weights = np.broadcast_to(np.array([0.5, 0.3], dtype=np.float32), shape).copy()
        rest = np.full(shape[:2], 0.1, dtype=np.float32)
        return Example(
            document=0, start=0, stack=stack, heads=heads, queries=queries, keys=moments, places=places,
            weights=weights, sink=rest, elsewhere=rest, picture=picture,
        )  # fmt: skip

    examples = (example("encoder", (0, 1, 2), moments), example("cross", (3, 4, 5), ("hello", "world", "!")))
    return replace(record, reads="audio", texts=replace(record.texts, examples=examples))


RECORDS = {
    "wide": lambda: make_record(3, 8, name="wide-model"),
    "deep": lambda: make_record(10, 6, group=3, causal=True, name="deep-model"),
    "stacks": lambda: make_record(2, 4, stacks=("encoder", "decoder", "cross"), name="two-sided"),
    "one": lambda: make_record(1, 1, repeats=False, documents=("a",)),
    "bare": lambda: without(make_record(2, 3, repeats=False, old=True), "pooled_map", "token_class", "offsets"),
    "old": lambda: make_record(2, 3, old=True),
    "hostile": lambda: speaking(EVIL),
    "images": pictured,
    "audio": heard,
    "large": lambda: make_record(30, 9, group=3, causal=True),
}
PAGES = {name: (lambda make=make: render_page(make())) for name, make in RECORDS.items()} | {
    "thousand": thousand_heads,
    "zh": lambda: render_page(RECORDS["wide"](), lang="zh"),
    "compare": lambda: render_comparison(make_record(2, 6, seed=1, name="old"), make_record(2, 6, seed=2, name="new")),
    "compare hostile": lambda: render_comparison(speaking(EVIL, 1), speaking(EVIL, 2)),
}


def selected(page):
    """The chosen head as the grid, the card and the table tell it."""
    cells = page.locator(".cell[aria-selected=true]").evaluate_all("all => all.map(e => e.id)")
    assert len(cells) == 1
    # The card is drawn a moment later, once for several keys.
    name = "e => e.firstChild.textContent"
    for _ in range(100):
        if page.locator("#card h2").evaluate(name) == cells[0]:
            break
        page.wait_for_timeout(20)
    assert page.locator("#card h2").evaluate(name) == cells[0]
    assert page.locator(".cell[tabindex='0']").evaluate_all("all => all.map(e => e.id)") == cells
    assert page.locator("tbody tr.on a").evaluate_all("all => all.map(e => e.textContent)") == cells
    return cells[0]


def cell(page, address):
    return page.locator(f'#heads .cell[id="{address}"]')


def pixels(page, canvas):
    """The bytes of a canvas."""
    return base64.b64decode(page.evaluate(f"{canvas}.toDataURL()").split(",")[1])
