"""Sorted copies: the windows of scattered data are those by hand, and a copy is written once, whole or not at all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory import peak_memory, restart_peak
from tests.sequences.by_hand import delivered, filled, make, sequences_of, windows_of, write
from torch_dataloader_utils import Subsets, Windows
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.sequences import sorting

rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=60)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few rows, which are cut again."""
    monkeypatch.setattr(sorting, "SHARE", 200)
    monkeypatch.setattr(sorting, "_GATHERED", 400)
    monkeypatch.setattr(sorting, "_BATCH_ROWS", 7)


def expected(keys: Sequence[Any], times: Sequence[Any], windows: Windows, left: Sequence[int]) -> dict[int, Any]:
    runs = sequences_of([keys[row] for row in left], [times[row] for row in left], windows.gap)
    found = windows_of([[left[place] for place in run] for run in runs], windows)
    return {row: filled(window, -1) for row, window in found.items()}


@pytest.mark.usefixtures("small")
@settings(max_examples=25, deadline=None)
@given(rows, st.integers(1, 4), st.sampled_from([None, 2]), st.booleans(), st.booleans(), st.integers(1, 60))
def test_windows_of_a_copy_are_those_by_hand(
    table: list[tuple[int, int]], length: int, gap: int | None, by: bool, filtered: bool, cut: int
) -> None:
    keys = [f"k{key}" if by else "k" for key, _ in table]
    times = [time for _, time in table]
    left = [row for row in range(len(table)) if not filtered or row % 3]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        path = write(data, keys, times, [cut] if cut < len(keys) else [])
        windows = Windows(length, order="time", by="key" if by else None, horizon=1, pad=-1, gap=gap, static="key")
        windows = windows.replace(sort=f"{folder}/sorted")
        filters = pc.field("x") - pc.field("x") / 3 * 3 != 0 if filtered else None
        found = list(make(path, windows, shuffle=True, filters=filters))
        assert delivered(found, windows) == expected(keys, times, windows, left)
        assert all(batch["key"] == [keys[row] for row in batch["x"][:, -1].tolist()] for batch in found)


def test_a_copy_is_written_once_for_what_it_holds(tmp_path: Path) -> None:
    path = write(tmp_path, ["a", "b", "a", "b"], [0, 0, 1, 1])
    folder = tmp_path / "copies"
    windows = Windows(2, order="time", by="key", sort=folder)

    def copies() -> set[str]:
        return {each.name for each in folder.iterdir() if not each.name.startswith(".")}

    assert delivered(list(make(path, windows)), windows).keys() == {2, 3}
    (first,) = copies()
    written = (folder / first / "00000.arrow").stat().st_mtime_ns
    assert delivered(list(make(path, windows.replace(length=1))), windows).keys() == {0, 1, 2, 3}
    assert copies() == {first}
    assert (folder / first / "00000.arrow").stat().st_mtime_ns == written
    assert delivered(list(make(path, windows, filters=[("x", ">", 0)])), windows).keys() == {3}
    shares = Subsets({"a": 0.5, "b": 0.5}, by="key")
    sides = [delivered(list(make(path, windows, subset=shares[name])), windows).keys() for name in ("a", "b")]
    assert sides[0] | sides[1] == {2, 3}
    write(tmp_path, ["a", "b", "a", "b", "a"], [0, 0, 1, 1, 2])
    assert delivered(list(make(path, windows)), windows).keys() == {2, 3, 4}
    assert len(copies()) >= 3  # a subset of one key is in order


def test_processes_that_need_one_copy_write_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ["a", "b", "a", "b"], [0, 0, 1, 1])
    windows, writes, spread = Windows(2, order="time", by="key", sort=tmp_path / "copies"), [], sorting._write

    def slow(*args: Any) -> None:
        writes.append(args)
        time.sleep(0.2)
        spread(*args)

    monkeypatch.setattr(sorting, "_write", slow)
    with ThreadPoolExecutor(3) as pool:
        loaders = list(pool.map(lambda _: make(path, windows), range(3)))
    assert [delivered(list(loader), windows).keys() for loader in loaders] == [{2, 3}] * 3
    assert len(writes) == 1


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than the bytes of the rows, a hundred times those of a range: it does not grow with them."""
    monkeypatch.setattr(sorting, "SHARE", 2**20)
    monkeypatch.setattr(sorting, "_GATHERED", 2**20)
    count, rng = 2_500_000, np.random.default_rng(0)
    with pq.ParquetWriter(tmp_path / "rows.parquet", pa.schema({name: pa.int64() for name in "kxyzt"})) as writer:
        for _ in range(50):
            part = {name: rng.integers(0, 1 << 40, count // 50) for name in "xyz"}
            writer.write_table(pa.table({"k": rng.integers(0, 1000, count // 50), **part, "t": part["x"] % 1000}))
    windows = Windows(2, order="t", by="k", sort=tmp_path / "_first")
    make(str(tmp_path), windows)  # what is allocated once
    before = restart_peak()
    loader = make(str(tmp_path), windows.replace(sort=tmp_path / "_copies"))
    grown = peak_memory() - before
    assert len(loader) == -(-(count - 1000) // 4)
    assert grown < 40 * count


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_a_killed_writer_left_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ["a", "b", "a", "b"], [0, 0, 1, 1])
    windows = Windows(2, order="time", by="key", sort=tmp_path / "copies")
    with monkeypatch.context() as broken:
        broken.setattr(sorting, "_sort_file", interrupted)
        broken.setattr(sorting.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            make(path, windows)
    assert any(each.name.endswith(".partial") for each in (tmp_path / "copies").iterdir())
    assert delivered(list(make(path, windows)), windows).keys() == {2, 3}
    assert not any(each.name.endswith(".partial") for each in (tmp_path / "copies").iterdir())


def test_data_in_order_need_no_copy(tmp_path: Path) -> None:
    path = write(tmp_path, ["a", "a", "b", "b"], [0, 1, 0, 1])
    windows = Windows(2, order="time", by="key", sort=tmp_path / "copies")
    assert delivered(list(make(path, windows)), windows).keys() == {1, 3}
    assert not (tmp_path / "copies").exists()


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, ["a", "b", "a", "b"], [0, 0, 1, 1])
    (tmp_path / "_file").touch()
    with pytest.raises(OptionError, match="expected a folder on a local disk with room"):
        make(path, Windows(2, order="time", by="key", sort=tmp_path / "_file"))


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, ["a", "b", "a", "b"], [0, 0, 1, 1])
    windows = Windows(2, order="time", by="key", sort=tmp_path / "_copies")
    make(path, windows)
    (tmp_path / "_copies").chmod(0o777)
    with pytest.raises(OptionError, match="run chmod 700"):
        make(path, windows)


def test_the_remedy_of_scattered_data_sorts_them(tmp_path: Path) -> None:
    path = write(tmp_path, ["a", "b", "a", "b"], [0, 0, 1, 1])
    with pytest.raises(OptionError, match="sorted copy") as refused:
        make(path, Windows(2, order="time", by="key"))
    (remedy,) = refused.value.remedies
    fields = dict(remedy.given["sequences"])
    fields["sort"] = str(tmp_path / "copies")
    assert delivered(list(make(path, Windows.of(fields))), Windows.of(fields)).keys() == {2, 3}
