"""What a new user does in the first hour: scripts of at most 15 lines, written from the documentation alone.

The first line of a script names the page that explains it, and the words of the script that the page has.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forkrun
from tests.first_hour.folder import DAYS, ROWS, rows_of, write_folder
from tests.ports import HOST
from tests.storage import servers
from tests.terminal import stderr_terminal

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPTS = sorted(HERE.glob("[0-9]*.py"))
LINES, CLICKS = 15, 2
# Ends a script that runs in a process of its own: writes some of its variables, and leaves out Python's own shutdown,
# which gloo's threads may not survive.
DUMP = """
import json, os, pathlib
written = json.dumps({name: globals()[name] for name in NAMES})
pathlib.Path(OUT, f"rank-{os.environ.get('RANK', 0)}.json").write_text(written)
os._exit(0)
"""

Run = Callable[[str], dict[str, Any]]


# ------------------------------------------------------------------------------------------------ scripts and pages


def code_of(script: Path) -> list[str]:
    """The lines of a script that are neither empty nor comments."""
    return [line for line in script.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]


def linked(pages: set[Path]) -> set[Path]:
    """The pages that these link to."""
    links = {page: re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", page.read_text()) for page in pages}
    targets = {(page.parent / link).resolve() for page in pages for link in links[page] if "://" not in link}
    return {target for target in targets if target.exists()}


def reached(page: Path) -> set[Path]:
    """The pages that are at most two clicks away from this one."""
    pages = {page}
    for _ in range(CLICKS):
        pages |= linked(pages)
    return pages


@pytest.fixture(scope="module")
def reachable() -> set[Path]:
    """The pages that are at most two clicks away from the README, and from the first page of the documentation."""
    return reached(ROOT / "README.md") & reached(ROOT / "docs" / "index.md")


def test_there_is_a_script_for_each_task() -> None:
    assert sorted({int(script.name[:2]) for script in SCRIPTS}) == list(range(1, 29))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_short_and_its_page_is_found(script: Path, reachable: set[Path]) -> None:
    header = re.fullmatch(r"# (docs/\S+\.md): (.+)", script.read_text().splitlines()[0])
    assert header is not None
    page, key = ROOT / header[1], header[2]
    assert len(code_of(script)) <= LINES
    assert page in reachable
    assert key in page.read_text()


# ------------------------------------------------------------------------------------------------ what scripts do


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first-hour")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_folder()
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script in the folder; gives its variables."""
    monkeypatch.chdir(folder)
    return lambda name: runpy.run_path(str(HERE / f"{name}.py"))


def run_apart(name: str, names: list[str], folder: Path, out: Path, *, ranks: int = 0) -> list[dict[str, Any]]:
    """Run a script in a process of its own, or on so many ranks; gives some variables of each process."""
    program = out / "train.py"
    program.write_text(f"{(HERE / f'{name}.py').read_text()}\nNAMES, OUT = {names!r}, {str(out)!r}{DUMP}")
    launcher = forkrun.command(ranks) if ranks else [sys.executable]
    done = subprocess.run(
        [*launcher, str(program)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank-*.json"))]


def column(name: str) -> list[Any]:
    """The values of a column in `data/`."""
    return rows_of(0, ROWS)[name].to_pylist()


def test_a_folder_as_float32_tensors(run: Run) -> None:
    left = run("01_float32")
    assert left["batch"]["x"].dtype == torch.float32
    assert left["prediction"].shape == (256, 1)


def test_columns_by_name_and_by_pattern(run: Run) -> None:
    assert list(run("02_columns")["batch"]) == ["f0", "f1", "label"]


def test_rows_of_a_sorted_file_are_shuffled(run: Run) -> None:
    first, second = run("03_shuffle")["epochs"]
    for epoch in (first, second):
        assert sorted(sum((ids for ids, _ in epoch), [])) == list(range(2000))
        assert all(0.2 < share < 0.8 for _, share in epoch)  # six standard deviations
    assert first != second


def test_train_and_validation_split(run: Run) -> None:
    left = run("04_train_validation")
    days = column("day")
    assert sorted(left["train_ids"] + left["validation_ids"]) == list(range(ROWS))
    assert max(days[row] for row in left["train_ids"]) < min(days[row] for row in left["validation_ids"])
    assert 0 < len(left["validation_ids"]) < ROWS / 2


@pytest.mark.slow
def test_two_ranks_of_ddp_read_each_row_once(folder: Path, tmp_path: Path) -> None:
    ranks = run_apart("05_ddp", ["seen", "steps"], folder, tmp_path, ranks=2)
    assert len({rank["steps"] for rank in ranks}) == 1
    assert sorted(ranks[0]["seen"] + ranks[1]["seen"]) == list(range(ROWS))


def test_hive_partitions(run: Run) -> None:
    assert run("06_hive")["months"] == {2}


def test_a_filter_on_a_decimal_and_a_date_given_as_text(run: Run) -> None:
    table = rows_of(0, ROWS).to_pylist()
    expected = [row["id"] for row in table if row["l_discount"] >= Decimal("0.05") and row["f1"] > 0.5]
    assert run("07_filter")["ids"] == [row for row in expected if row < 10 * ROWS // DAYS]


def test_strings_to_token_ids_in_a_transform(run: Run) -> None:
    tokens = run("08_tokens")["batch"]["tokens"]
    assert tokens["lengths"].tolist() == [3, 2, 1, 5]
    assert tokens["values"][:3].tolist() == [[1, 2, 3, 0, 0], [1, 3, 0, 0, 0], [2, 0, 0, 0, 0]]


def test_ragged_and_padded_lists(run: Run) -> None:
    left = run("09_lists")
    assert (left["values"].tolist(), left["offsets"].tolist()) == ([1, 2, 3, 4], [0, 3, 3, 4])
    assert (left["matrix"].tolist(), left["lengths"].tolist()) == ([[1, 2, 3], [0, 0, 0], [4, 0, 0]], [3, 0, 1])


def test_nulls(run: Run) -> None:
    assert run("10_nulls")["mean"] == 30


def test_timestamps(run: Run) -> None:
    assert run("11_timestamps")["hour"].tolist() == [0, 13, 23]


def test_images_as_bytes_to_tensors(run: Run) -> None:
    images = run("12_images")["images"]
    assert images.shape == (4, 3, 8, 8)
    assert torch.equal((images[3, :, 0, 0] * 255).round(), torch.tensor([3.0, 30.0, 255.0]))


@pytest.mark.slow
def test_an_s3_path_with_credentials(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed")
    with servers.moto(tmp_path) as store:
        store.put(folder / "data", "first-hour")
        monkeypatch.setenv("S3_SERVER", f"http://{HOST}:{store.port}")
        assert run("13_s3")["ids"] == list(range(ROWS))


def test_resume_from_a_checkpoint(run: Run) -> None:
    left = run("14_resume")
    assert all(map(torch.equal, left["after"], left["expected"]))
    assert torch.cat(left["before"] + left["after"]).sort().values.equal(torch.arange(ROWS))


def test_an_iceberg_table_by_catalog_and_as_it_was(run: Run) -> None:
    left = run("15_iceberg")
    assert (left["rows_now"], left["rows_then"]) == (200, 100)


@pytest.mark.slow
def test_accelerate(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchdata")  # an Accelerator asks for it where loaders have a state
    (left,) = run_apart("16_accelerate", ["ids"], folder, tmp_path)
    assert left["ids"] == list(range(ROWS - ROWS % 300))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's own, of which there are many
def test_lightning(run: Run) -> None:
    pytest.importorskip("lightning")
    assert run("16_lightning")["steps"] == 2 * (ROWS // 300)


@pytest.mark.slow
def test_hf_trainer_validates_on_other_rows(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (left,) = run_apart("16_hf_trainer", ["metrics"], folder, tmp_path)
    assert left["metrics"]["epoch"] == 2
    assert math.isfinite(left["metrics"]["eval_loss"])


def test_a_progress_bar_over_an_epoch(run: Run) -> None:
    with stderr_terminal() as terminal:
        run("17_progress_bar")
    assert [line[:13] for line in terminal.screen if line] == ["epoch 0: 100%", "epoch 1: 100%"]


def test_rows_and_steps_of_an_epoch_on_each_rank(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = run("18_rows_and_steps")["ranks"]
    assert sum(rows for rows, _ in ranks) == ROWS
    assert [steps for _, steps in ranks] == [math.ceil(rows / 300) for rows, _ in ranks]
    assert re.search(r"4[, ]?000", capsys.readouterr().out)


def test_what_a_rank_will_read(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    table = run("19_plan")["table"]
    assert "part-3.parquet" in capsys.readouterr().out
    assert "part-3.parquet" in str(table)


def test_a_readme_among_the_data(run: Run) -> None:
    assert run("20_other_files")["ids"] == list(range(10))


def test_files_with_ints_and_floats(run: Run) -> None:
    assert run("21_int_and_float")["values"] == [1.0, 2.0, 0.5, 1.5]


def test_a_column_that_is_missing_in_a_file(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        values = run("22_missing_column")["values"]
    assert values[:2] == [0.5, 1.5]
    assert all(map(math.isnan, values[2:]))
    assert any("b.parquet" in record.getMessage() for record in caplog.records if record.levelno == logging.INFO)


def test_one_row_group_for_four_ranks_is_warned_about(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    left = run("23_one_row_group")
    assert (left["before"], left["after"]) == ([400, 0, 0, 0], [100] * 4)
    assert any(record.levelno == logging.WARNING and "row group" in record.getMessage() for record in caplog.records)


def test_the_length_of_a_loader(run: Run) -> None:
    left = run("24_len")
    assert (left["steps"], left["filtered_steps"]) == (math.ceil(ROWS / 300), math.ceil(ROWS / 4 / 300))


def test_balanced_classes(run: Run) -> None:
    assert run("25_balance")["shares"] == [0.5] * 20


def test_two_datasets_half_and_half(run: Run) -> None:
    assert run("26_mix")["from_small"] == [128] * (2 * 3000 // 256)


def test_time_waited_for_data_is_logged(run: Run) -> None:
    logged = run("27_wait_time")["logged"]
    assert [each["step"] for each in logged] == list(range(math.ceil(ROWS / 300)))
    assert sum(each["rows"] for each in logged) == ROWS
    assert all(each["data_wait_s"] > 0 and 0 < each["data_wait_fraction"] <= 1 for each in logged)


def test_a_notebook(run: Run) -> None:
    left = run("28_notebook")
    assert left["html"].lstrip().startswith("<")
    assert left["rows"] == ROWS
