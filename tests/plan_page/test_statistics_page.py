"""The page of statistics in a browser: sorted, searched, unfolded, light and dark, without network and errors."""

from __future__ import annotations

import pytest

from tests.preprocess.test_statistics import varied
from torch_dataloader_utils.preprocess.statistics import statistics


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    return statistics(varied()).write_html(tmp_path_factory.mktemp("page") / "statistics.html")


@pytest.fixture
def page(browser, page_file):
    opened = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: problems.append(request.url) if "file:" not in request.url else None)
    opened.goto(page_file.as_uri())
    yield opened
    assert [each for each in problems if not each.startswith("data:")] == []
    opened.close()


def names(page) -> list[str]:
    return page.locator("tr.column:visible .more").all_inner_texts()


def test_columns_are_sorted_by_any_cell(page):
    assert names(page)[0] == "age"
    page.click("[data-sort='2']")
    page.click("[data-sort='2']")
    assert names(page)[:2] == ["gone", "rare"]
    assert page.locator("th").nth(2).get_attribute("aria-sort") == "descending"
    page.click("[data-sort='3']")
    assert names(page)[:2] == ["gone", "one"]
    assert names(page)[-1] == "inner"  # not known: last
    page.click("[data-sort='3']")
    assert names(page)[-1] == "inner"


def test_columns_are_found_and_unfolded(page):
    page.fill("#find", "INC")
    assert names(page) == ["income"]
    page.click(".more:visible")
    assert page.locator(".details:visible svg rect").count() == 24
    assert "99% quantile" in page.locator(".details:visible").inner_text()
    page.fill("#find", "")
    assert len(names(page)) == len(varied().column_names)
    page.click(".remarks a:has-text('uuid')")
    assert "looks like an id" in page.locator(".details:visible").last.inner_text()


def test_the_theme_is_the_readers(page):
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
