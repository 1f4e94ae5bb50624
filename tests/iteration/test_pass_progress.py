"""The bar of an epoch: what it counts, where it begins, and that it ends with its pass."""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.terminal import Terminal, stderr_terminal
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.iteration.pass_progress import rows_before
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.planner import plan_options
from torch_dataloader_utils.planning.phases import Phase, plain_options

FILES, ROWS = 4, 1000  # rows of each file
ALL = FILES * ROWS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for number in range(FILES):
        table = pa.table({"id": np.arange(number * ROWS, (number + 1) * ROWS)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=250)
    return folder


def made(folder: Path | str, **options: Any) -> Any:
    """A loader of 300 rows a batch that shows its progress."""
    options = {"num_ranks": 1, "rank": 0, "show_progress": True, **options}
    return StructuredDataset.create_dataloader(folder, batch_size=300, **options)[0]


def ends(terminal: Terminal) -> list[tuple[str, str]]:
    """Of each bar that stays on the screen: its name, and its counts."""
    lines = [re.match(r"(.*?): .*?([\d.k]+(?:/[\d.k]+)?)(?: rows)? \[", line) for line in terminal.screen if line]
    return [match.groups() for match in lines if match]  # type: ignore[misc]


def test_each_epoch_has_a_bar(folder: Path) -> None:
    with stderr_terminal() as terminal:
        loader = made(folder)
        for _ in range(2):
            list(loader)
    assert ends(terminal) == [("epoch 0", "4000/4000"), ("epoch 1", "4000/4000")]
    assert all("rows/s, data wait " in line for line in terminal.screen if line)


@pytest.mark.parametrize("way", ["collected", "next pass", "closed"])
def test_an_abandoned_pass_leaves_its_bar_where_it_came_to(folder: Path, way: str) -> None:
    with stderr_terminal() as terminal:
        loader = made(folder)
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        if way == "collected":
            del batches
        elif way == "closed":
            batches.close()
        else:
            list(loader)
    assert ends(terminal)[0] == ("epoch 0", "1500/4000")
    assert ends(terminal)[1:] == ([("epoch 0", "4000/4000")] if way == "next pass" else [])
    assert terminal.text.endswith("\n")


def test_a_pass_that_fails_leaves_its_bar(folder: Path) -> None:
    def failing(batch: Any) -> Any:
        assert batch["id"][0] < 2000
        return batch

    with stderr_terminal() as terminal, pytest.raises(AssertionError):
        list(made(folder, collate_fn=failing))
    assert ends(terminal) == [("epoch 0", "2100/4000")]


def test_a_resumed_pass_begins_at_the_rows_already_delivered(folder: Path) -> None:
    loader = made(folder, show_progress=False)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    with stderr_terminal() as terminal:
        resumed = made(folder)
        resumed.load_state_dict(state)
        list(resumed)
    assert "1500/4000 [00:00<?" in terminal.frames[0]
    assert ends(terminal) == [("epoch 0", "4000/4000")]


def test_a_pass_resumed_on_other_ranks_begins_at_this_ranks_share(folder: Path) -> None:
    loader = made(folder, show_progress=False, num_ranks=2, rank=0)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    with stderr_terminal() as terminal:
        resumed = made(folder)
        resumed.load_state_dict(loader.state_dict())
        list(resumed)
    assert "2400/4000 [00:00<?" in terminal.frames[0]
    assert ends(terminal) == [("epoch 0", "4000/4000")]


def test_skipped_steps_are_not_expected(folder: Path) -> None:
    with stderr_terminal() as terminal:
        loader = made(folder)
        batches = iter(loader)
        next(batches)
        loader.skip_steps(3, 8)
        list(batches)
        loader.skip_steps(0, 4)  # of the next epoch
        list(loader)
    assert ends(terminal) == [("epoch 0", "2500/2500"), ("epoch 1", "2800/2800")]


def test_rows_known_only_after_reading_have_no_total(folder: Path) -> None:
    with stderr_terminal() as terminal:
        loader = made(folder, filters=[("id", "not in", list(range(0, ALL, 10)))], num_workers=2)
        list(itertools.islice(loader, 3))
        list(loader)
    assert "/" not in terminal.frames[0].partition("[")[0]
    assert [name for name, _ in ends(terminal)] == ["epoch 0", "epoch 0"]
    assert "3.60k" in terminal.screen[1]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"steps_per_epoch": 25}, 7500),
        ({"even": "pad", "num_ranks": 3}, 1500),
        ({"even": "drop", "num_ranks": 3}, 1200),
        ({"last_batch": "drop"}, 3900),
        ({"num_workers": 3, "shuffle": True}, 4000),
    ],
)
def test_the_total_is_what_is_delivered(folder: Path, options: dict[str, Any], rows: int) -> None:
    with stderr_terminal() as terminal:
        for _ in made(folder, **options):
            sleep(0.005)
    assert ends(terminal) == [("epoch 0", f"{rows}/{rows}")]
    totals = {frame.partition("/")[2].partition(" ")[0] for frame in terminal.frames}
    assert totals == {str(rows)}


def test_the_bar_shows_how_much_was_found_in_the_cache(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**62, 200_000)  # more than the blocks that hold the footer
    pq.write_table(pa.table({"id": values}), tmp_path / "a.parquet")
    fsspec.filesystem("memory").put(str(tmp_path / "a.parquet"), "/progress/a.parquet")
    with stderr_terminal() as terminal:
        loader = made("memory://progress/a.parquet", cache=tmp_path / "cache")
        for _ in range(2):
            list(loader)
    first, second = (int(share) for share in re.findall(r"from cache (\d+)%", "\n".join(terminal.screen)))
    assert first < 50  # planning read the footer, and with it the last of the rows
    assert second == 100


def test_two_loaders_have_a_bar_each(folder: Path) -> None:
    with stderr_terminal() as terminal:
        train, validation = made(folder), made(folder / "0.parquet")
        for step, _ in enumerate(train):
            if step == 6:
                list(validation)
    assert sorted(ends(terminal)) == [("epoch 0", "1000/1000"), ("epoch 0", "4000/4000")]


@pytest.mark.parametrize(
    ("show", "rank", "names"), [(True, 1, []), ("all", 1, ["epoch 0, rank 1"]), (True, 0, ["epoch 0"])]
)
def test_other_ranks_show_bars_only_if_all_do(folder: Path, show: Any, rank: int, names: list[str]) -> None:
    with stderr_terminal() as terminal:
        list(made(folder, show_progress=show, num_ranks=2, rank=rank))
    assert [name for name, _ in ends(terminal)] == names


def test_without_a_terminal_there_are_lines_of_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list(made(folder))
    [line] = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"epoch 0: 4,000 of 4,000 rows \(100%\), [\d,]+ rows/s, data wait \d+%", line)


def test_without_bars_a_long_epoch_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        list(made(folder, show_progress=False))
        assert not [record for record in caplog.records if "data wait" in record.message]
        list(made(folder, show_progress=False, progress_interval_sec=1e-9))
    lines = [record.message for record in caplog.records if "data wait" in record.message]
    assert lines[0].startswith("epoch 0: 300 of 4,000 rows (8%), ")
    assert len(lines) == ALL // 300


def test_a_line_names_the_rank_if_there_are_several(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        list(made(folder, num_ranks=2, rank=1, progress_interval_sec=1e-9))
    assert any(record.message.startswith("epoch 0, rank 1: 300 of 2,000 rows") for record in caplog.records)


def test_an_abandoned_pass_adds_no_line_to_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        next(iter(made(folder, show_progress=False)))
        list(made(folder, show_progress=False, filters=[("id", "not in", [3])]))  # no total
    assert not [record for record in caplog.records if "data wait" in record.message]


def test_an_abandoned_pass_prints_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(iter(made(folder)))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_bar_is_drawn_at_most_ten_times_a_second(folder: Path) -> None:
    began = perf_counter()
    with stderr_terminal() as terminal:
        loader = made(folder)
        assert len(list(itertools.chain(*itertools.repeat(loader, 8)))) == 8 * 14
    assert len(terminal.frames) <= 8 * 5 + (perf_counter() - began) / 0.1


def test_a_worker_of_a_foreign_loader_shows_nothing(folder: Path) -> None:
    with stderr_terminal() as terminal:
        dataset = made(folder).dataset
        epochs = Passes(dataset._source, dataset._options, worker=(0, 2))
        started = epochs.begin()
        started.shown.update(started)
        epochs.close()
    assert not terminal.text


def phases(options: Any, steps: int, num_ranks: int) -> Phase:
    return Phase(plain_options(options, num_ranks, Feature()), steps)


def test_rows_before_a_position(folder: Path) -> None:
    options = plan_options(made(folder, show_progress=False).dataset._options)
    past = (phases(options, 4, 2), phases(options, 1, 3))
    assert rows_before(EpochPosition(0), options, 1) == 0
    assert rows_before(EpochPosition(0, taken=3), options, 1) == 900
    assert rows_before(EpochPosition(0, taken=3, skip=((1, 3), (5, 9))), options, 1) == 300
    assert rows_before(EpochPosition(0, taken=2, past=past), options, 2) == (4 * 2 + 1 * 3) * 300 // 2 + 600
