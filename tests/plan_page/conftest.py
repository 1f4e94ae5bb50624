"""A browser without a window, in which the plan page and its planner run as they do for users."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Chromium as root has no sandbox; none of our tests needs a graphics card or the network.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
)


def missing(what: str, remedy: str) -> NoReturn:
    """Skip the tests of the page, loudly; fail them in CI, which must not lose them unnoticed."""
    end = pytest.fail if os.environ.get("CI") else pytest.skip
    end(f"THE PLAN PAGE IS NOT TESTED: {what}. {remedy}")


def chromium(of_playwright: str) -> str:
    """The path of a Chromium: that of TDU_CHROMIUM, else the system's, else the one that Playwright downloaded."""
    given = os.environ.get("TDU_CHROMIUM")
    if given and not Path(given).is_file():
        missing(f"TDU_CHROMIUM={given} is no file", "Set it to the path of a Chromium or Chrome.")
    found = [given, *map(shutil.which, NAMES), of_playwright if Path(of_playwright).is_file() else None]
    for path in filter(None, found):
        return path
    missing("there is no Chromium", "Run `make browser` as root (Debian), or set TDU_CHROMIUM=/path/to/chrome.")


@pytest.fixture(scope="package")  # not longer: while Playwright runs, asyncio.run() is an error in this thread
def browser() -> Iterator[object]:
    """A Chromium (`playwright.sync_api.Browser`) for all tests of the page."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright is not installed", "Run `make .venv/test-browser`.")
    with sync_playwright() as playwright:
        path = chromium(playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()
