"""Opens pages in Chromium, for the tests of this folder."""

from __future__ import annotations

import shutil
import time

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
if BROWSER is None:
    pytest.skip("no Chromium on the PATH (Debian: apt install chromium)", allow_module_level=True)


class opening:
    """A page of a file or an address, once it has an element `ready`; whatever it complains of fails the test."""

    def __init__(
        self, browser, target, width=1100, ready="figure[data-chart=incremental] svg[role=img]", **options
    ):
        self.ready = ready
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.target = target if isinstance(target, str) else target.as_uri()
        self.complaints = []

    def __enter__(self):
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        page.on("requestfailed", lambda request: self.complaints.append(request.url))
        page.goto(self.target)
        page.wait_for_selector(self.ready)
        return page

    def __exit__(self, kind, *_):
        self.context.close()
        if kind is None:
            assert self.complaints == []


def wait_until(page, condition):
    """Wait until the condition holds; the page's policy does not allow playwright's `wait_for_function`."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)


def chart(page, key):
    return page.locator(f"figure[data-chart={key}]")
