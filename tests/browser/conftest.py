"""The browser of the tests of this folder."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def browser():
    from browser_pages import BROWSER, playwright  # skips the tests without them

    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()
