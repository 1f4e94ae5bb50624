"""Progress as it is shown: bars on a terminal, lines of text elsewhere, and the log."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from tests.terminal import stderr_terminal
from torch_dataloader_utils import MissingExtraError, StructuredDataset
from torch_dataloader_utils.progress import LOGGED, Progress, progress_text

BARS = Progress(show=True)


@pytest.mark.parametrize(
    ("done", "total", "rate", "note", "text"),
    [
        (2, 3, 0.5, "", "2 of 3 rows (67%), 0 rows/s, 0:00:02 left"),
        (3_000, 4_000, 50, "data wait 4%", "3,000 of 4,000 rows (75%), 50 rows/s, 0:00:20 left, data wait 4%"),
        (0, 10, 0, "", "0 of 10 rows (0%), 0 rows/s"),
        (10, 10, 5, "", "10 of 10 rows (100%), 5 rows/s"),
        (7, None, 3, "", "7 rows, 3 rows/s"),
        (0, 0, 0, "", "0 of 0 rows, 0 rows/s"),
        (1, 36_001, 10, "", "1 of 36,001 rows (0%), 10 rows/s, 1:00:00 left"),
    ],
)
def test_a_line_of_text(done: int, total: int | None, rate: float, note: str, text: str) -> None:
    assert progress_text(done, total, "rows", rate, note) == text


def test_the_log_gets_lines_only_while_work_lasts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        with Progress(interval=1e-9).over(3, "counting rows", "stripes") as shown:
            shown.advance(2)
            shown.advance(1)
        with LOGGED.over(3, "counting rows", "stripes") as shown:  # quicker than its interval
            shown.advance(2)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("counting rows: 2 of 3 stripes (67%), ")


def test_quick_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with BARS.over(3, "reading footers", "files") as shown:
        shown.advance(3)
    assert not capsys.readouterr().err
    with stderr_terminal() as terminal, BARS.over(3, "reading footers", "files") as shown:
        shown.advance(3)
    assert not terminal.text


def test_longer_work_shows_a_bar_that_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with stderr_terminal() as terminal:
        assert list(BARS.each(iter("abc"), 3, "reading footers", "files")) == ["a", "b", "c"]
        with BARS.over(3, "reading footers", "files", delay=0) as shown:
            shown.advance(3)
    assert [line[:36] for line in terminal.screen] == ["reading footers: 100%|██████████████", ""]
    assert "3/3 [" in terminal.screen[0]
    with BARS.over(3, "reading footers", "files", delay=0) as shown:
        shown.advance(3)
    assert capsys.readouterr().err.startswith("reading footers: 3 of 3 files (100%), ")


def test_work_that_fails_leaves_its_bar_as_it_was() -> None:
    with stderr_terminal() as terminal:
        with pytest.raises(ZeroDivisionError), BARS.over(3, "listing", "files", delay=0) as shown:
            shown.advance(1 + 1 // (shown.advance() or 0))
    assert "1/3 [" in terminal.screen[0]
    assert terminal.text.endswith("\n")


def test_bars_of_a_rank_are_on_lines_of_their_own() -> None:
    second_of_two = Progress(show=True, label="rank 1", line=1, lines=2)
    with stderr_terminal() as terminal:
        bars = [second_of_two.begin(work, "rows", 10) for work in ("train", "validation")]
        for bar in reversed(bars):
            bar.at(4, 10, "data wait 1%")
    assert [line[:18].rstrip(": 40%|") for line in terminal.screen] == ["", "train, rank 1", "", "validation, rank 1"]
    for bar in bars:
        bar.close()  # the terminal is gone


def test_without_tqdm_construction_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"torch-dataloader-utils\[progress\]"):
        StructuredDataset.create_dataloader("never-read/", show_progress=True)


def test_a_closed_stderr_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        with BARS.over(1, "listing", "files", delay=0) as shown:
            shown.advance()


def test_a_stream_that_only_writes_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that copies stderr to a file."""

    written = io.StringIO()

    class Copied:
        def write(self, text: str) -> int:
            return written.write(text)

    monkeypatch.setattr(sys, "stderr", Copied())
    with BARS.over(1, "listing", "files", delay=0) as shown:
        shown.advance()
    assert written.getvalue().startswith("listing: 1 of 1 files (100%), ")
