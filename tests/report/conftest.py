"""One Chromium for all pages: opened from disk, without a network; pages are written once."""

import shutil
from contextlib import contextmanager

import pytest

from report.browsing import FLAGS, PAGES
from report.reading import data_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Write a page once; the path and what the page holds."""
    folder, done = tmp_path_factory.mktemp("pages"), {}

    def write(name):
        if name not in done:
            page = PAGES[name]()
            path = folder / f"{name}.html"
            path.write_text(page, encoding="utf-8")
            done[name] = path.as_uri(), data_of(page)
        return done[name]

    return write


@pytest.fixture(scope="session")
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
        own = [url for url in asked if not url.startswith(("data:image/png;base64,", "blob:"))]
        assert {url.split("#")[0] for url in own} == {address}
        assert complaints == []

    return visit
