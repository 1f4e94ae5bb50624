"""Which browser the tests run in, and what happens where there is none."""

import pytest

from tests.plan_page.conftest import chromium


@pytest.fixture
def no_browser(monkeypatch, tmp_path):
    for name in ("CI", "TDU_CHROMIUM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_the_browser_runs_pages(browser):
    page = browser.new_page()
    page.set_content("<title>It runs</title>")
    assert page.title() == "It runs"
    page.close()


def test_without_a_browser_the_tests_are_skipped_with_what_to_do(no_browser):
    with pytest.raises(pytest.skip.Exception, match=r"NOT TESTED: there is no Chromium\. Run `make browser`"):
        chromium("/nowhere")


def test_in_ci_they_fail(no_browser, monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="there is no Chromium"):
        chromium("/nowhere")


def test_a_given_browser_is_taken_or_named_if_there_is_none(no_browser, monkeypatch, tmp_path):
    mine = tmp_path / "chrome"
    monkeypatch.setenv("TDU_CHROMIUM", str(mine))
    with pytest.raises(pytest.skip.Exception, match=f"TDU_CHROMIUM={mine} is no file"):
        chromium("/nowhere")
    mine.touch()
    assert chromium("/nowhere") == str(mine)


def test_playwrights_own_browser_is_the_last_resort(no_browser, tmp_path):
    own = tmp_path / "playwrights"
    own.touch()
    assert chromium(str(own)) == str(own)
