"""`on_error="skip"`: damaged files are left out before the epoch is planned; no other error is."""

import gzip
import json
import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset, TableDataset, combine, merge_state_dicts
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    DamagedFileError,
    DataLoaderUtilsError,
    FileChangedError,
    FileReadError,
    OptionError,
    SchemaMismatchError,
    UnknownOptionError,
)
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.redaction import known, remember_secrets
from torch_dataloader_utils.sources.manifest_changes import manifest_changes
from torch_dataloader_utils.storage import retries

ROWS = 40
MANY = 70_000  # rows of a text file of which planning reads no more than the first 90 %


# ------------------------------------------------------------------------------------------- whole files and damage


def table(number: int, rows: int = ROWS) -> pa.Table:
    ids = np.arange(number * rows, (number + 1) * rows)
    return pa.table({"id": ids, "word": [f"word {i}" for i in ids]})


def write_parquet(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, row_group_size=10, use_dictionary=False)


def write_orc(rows: pa.Table, path: Path) -> None:
    orc.write_table(rows, path, compression="zlib")


def write_ipc(rows: pa.Table, path: Path) -> None:
    feather.write_feather(rows, str(path), compression="lz4", chunksize=10)


def write_json_lines(rows: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))


def write_json(rows: pa.Table, path: Path) -> None:
    path.write_text(json.dumps(rows.to_pylist()))


def write_csv(rows: pa.Table, path: Path) -> None:
    csv.write_csv(rows, path)


def write_csv_gz(rows: pa.Table, path: Path) -> None:
    write_csv(rows, path)
    path.write_bytes(gzip.compress(path.read_bytes(), 1))


def cut_in_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def nothing(data: bytes) -> bytes:
    return b""


def other_format(data: bytes) -> bytes:
    return b"<html>404 not found</html>" * 100


def wiped(start: int, stop: int) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        return data[:start] + b"\xff" * len(data[start:stop]) + (data[stop:] if stop else b"")

    return damage


def late(bad: bytes) -> Callable[[bytes], bytes]:
    """A function that puts these bytes between two of the last lines."""

    def damage(data: bytes) -> bytes:
        line = data.index(b"\n", len(data) * 19 // 20) + 1
        return data[:line] + bad + data[line:]

    return damage


CASES = {
    "parquet footer": ("parquet", write_parquet, ROWS, wiped(-40, 0)),
    "parquet page": ("parquet", write_parquet, ROWS, wiped(4, 60)),
    "parquet half": ("parquet", write_parquet, ROWS, cut_in_half),
    "parquet other format": ("parquet", write_parquet, ROWS, other_format),
    "parquet empty": ("parquet", write_parquet, ROWS, nothing),
    "orc footer": ("orc", write_orc, ROWS, wiped(-30, 0)),
    "orc stripe": ("orc", write_orc, ROWS, wiped(3, 120)),
    "orc half": ("orc", write_orc, ROWS, cut_in_half),
    "ipc footer": ("arrow", write_ipc, ROWS, wiped(-30, 0)),
    "ipc batch": ("arrow", write_ipc, ROWS, wiped(500, 900)),
    "ipc half": ("arrow", write_ipc, ROWS, cut_in_half),
    "csv head": ("csv", write_csv, ROWS, late(b"1,2,3,4\n")),
    "csv row of too many fields": ("csv", write_csv, MANY, late(b"1,2,3,4\n")),
    "csv not UTF-8": ("csv", write_csv, MANY, late(b'7,"\xff\xfe"\n')),
    "csv.gz half": ("csv.gz", write_csv_gz, MANY, cut_in_half),
    "csv.gz head": ("csv.gz", write_csv_gz, ROWS, wiped(0, 20)),
    "jsonl row": ("jsonl", write_json_lines, MANY, late(b'{"id": \n')),
    "jsonl half": ("jsonl", write_json_lines, ROWS, lambda data: data[: len(data) // 2 - 5]),
    "json half": ("json", write_json, MANY, cut_in_half),
    "json other format": ("json", write_json, ROWS, other_format),
}


def folder_of(tmp_path: Path, suffix: str = "parquet", write: Any = write_parquet, rows: int = ROWS) -> Path:
    """Four files; those called 1 and 2 are to be damaged."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(4):
        write(table(number, rows), folder / f"{number}.{suffix}")
    return folder


PAGE = wiped(4, 60)


def spoil(path: Path, damage: Callable[[bytes], bytes] = PAGE) -> None:
    path.write_bytes(damage(path.read_bytes()))


def spoil_quietly(path: Path) -> None:
    """Damage a page so that size and time of the file stay."""
    status = path.stat()
    spoil(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Parquet files of which 1 has a damaged page, and 2 a damaged footer."""
    folder = folder_of(tmp_path)
    spoil(folder / "1.parquet")
    spoil(folder / "2.parquet", wiped(-40, 0))
    return folder


def made(path: Any, **options: Any) -> tuple[Any, Any]:
    given = {"batch_size": 7, "on_error": "skip", "num_workers": 0, "num_ranks": 1, "rank": 0}
    return StructuredDataset.create_dataloader(path, **{**given, **options})


def ids(batches: Any) -> list[int]:
    return [
        row for batch in batches for row in batch["id"][batch.get("valid", torch.ones(len(batch["id"])) > 0)].tolist()
    ]


def ids_of_files(numbers: Sequence[int], rows: int = ROWS) -> list[int]:
    return [i for number in numbers for i in range(number * rows, (number + 1) * rows)]


def names(dataset: Any) -> list[str]:
    return [Path(file.path).name for file in dataset._source.skipped]


# ------------------------------------------------------------------------------------------------------ every place


@pytest.mark.parametrize("case", CASES)
def test_a_file_damaged_anywhere_is_left_out_whole(tmp_path: Path, case: str) -> None:
    suffix, write, rows, damage = CASES[case]
    folder = folder_of(tmp_path, suffix, write, rows)
    spoil(folder / f"1.{suffix}", damage)
    loader, dataset = made(str(folder), batch_size=1000, columns=["id"])
    assert names(dataset) == [f"1.{suffix}"]
    assert f"1.{suffix}" in dataset._source.skipped[0].reason
    assert ids(loader) == ids_of_files([0, 2, 3], rows)
    with pytest.raises(DamagedFileError, match=rf"1\.{suffix}") as caught:
        for _ in made(str(folder), on_error="raise", batch_size=1000)[0]:
            pass
    assert "on_error='skip'" in "".join(caught.value.__notes__)
    assert caught.value.path == str(folder / f"1.{suffix}")


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv.gz"])
def test_what_passes_the_check_can_be_read(tmp_path: Path, suffix: str) -> None:
    write = {"parquet": write_parquet, "arrow": write_ipc, "csv.gz": write_csv_gz}[suffix]
    folder, draw = tmp_path / "data", random.Random(0)
    folder.mkdir()
    write(table(0), folder / f"0.{suffix}")
    write(table(1), folder / f"1.{suffix}")
    whole, outcomes = (folder / f"1.{suffix}").read_bytes(), Counter[str]()
    for _ in range(60):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        (folder / f"1.{suffix}").write_bytes(data)
        try:
            loader, dataset = made(str(folder), columns=["id"])
        except DataLoaderUtilsError as error:
            assert not isinstance(error, DamagedFileError)  # noqa: PT017
            outcomes[type(error).__name__] += 1
            continue
        delivered = ids(loader)
        assert delivered[:ROWS] == ids_of_files([0])
        assert len(delivered) == ROWS * (2 - len(dataset._source.skipped))
        outcomes["skipped" if dataset._source.skipped else "read"] += 1
    assert outcomes["skipped"] > 5, outcomes


@pytest.mark.parametrize("mode", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_workers_deliver_what_is_left(folder: Path, mode: str) -> None:
    loader, _ = made(str(folder), num_workers=2, worker_mode=mode)
    assert sorted(ids(loader)) == ids_of_files([0, 3])
    loader.dataset.close()


def test_all_columns_are_checked_whichever_are_read(folder: Path) -> None:
    assert names(made(str(folder), columns=["word"])[1]) == ["1.parquet", "2.parquet"]


def test_a_filter_that_rules_out_the_damaged_rows_does_not_bring_the_file_back(folder: Path) -> None:
    loader, dataset = made(str(folder), filters=[("id", ">=", 1.5 * ROWS)])
    assert names(dataset) == ["1.parquet", "2.parquet"]
    assert ids(loader) == ids_of_files([3])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damaged=st.sets(st.integers(0, 5), max_size=5),
    ranks=st.integers(1, 3),
    even=st.sampled_from(["none", "drop", "pad"]),
)
def test_ranks_share_what_is_left_in_equal_steps(
    tmp_path_factory: pytest.TempPathFactory, damaged: set[int], ranks: int, even: str
) -> None:
    folder = tmp_path_factory.mktemp("even")
    for number in range(6):
        write_parquet(table(number), folder / f"{number}.parquet")
        if number in damaged:
            spoil(folder / f"{number}.parquet", wiped(4, 60) if number % 2 else wiped(-40, 0))
    loaders = [made(str(folder), num_ranks=ranks, rank=rank, even=even, shuffle=True)[0] for rank in range(ranks)]
    steps = [len(loader) for loader in loaders]
    delivered = sorted(i for loader in loaders for i in ids(loader))
    left = ids_of_files([number for number in range(6) if number not in damaged])
    assert even == "none" or len(set(steps)) == 1
    if even == "drop":
        assert len(delivered) == steps[0] * ranks * 7 == len(left) // (ranks * 7) * ranks * 7
        assert set(delivered) <= set(left)
        assert len(set(delivered)) == len(delivered)
    else:
        assert delivered == left


def test_rows_of_text_are_counted_without_the_damaged_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "csv", write_csv)
    spoil(folder / "1.csv", late(b"1,2,3,4\n"))
    loaders = [made(str(folder), count_rows=True, even="drop", num_ranks=2, rank=rank)[0] for rank in range(2)]
    assert [len(loader) for loader in loaders] == [3 * ROWS // 14] * 2


# ---------------------------------------------------------------------------------------------------- what is shown


def test_what_was_left_out_is_shown_everywhere(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        loader, dataset = made(str(folder))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    for word in ("2 damaged files with at least 40 rows", "keeps 2", "1.parquet, row group 0", "2.parquet, footer"):
        assert word in warnings[0]
    assert dataset.metrics()["skipped_files"] == dataset.metrics()["skipped_files"] == 2
    assert dataset.metrics(detail=True)["skipped_rows"] == ROWS
    assert 'tdu_skipped_files{rank="0"} 2.0' in dataset.metrics_text()
    assert "2 damaged files with at least 40 rows: 1.parquet, 2.parquet" in repr(dataset.describe())
    assert [file["path"] for file in dataset.describe().to_dict()["skipped"]] == [
        str(folder / "1.parquet"),
        str(folder / "2.parquet"),
    ]
    ids(loader)
    assert str(dataset.verdict()).endswith("Left out: 2 damaged files with at least 40 rows.")


def test_nothing_is_shown_where_nothing_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader, dataset = made(str(folder_of(tmp_path)))
    ids(loader)
    assert dataset.metrics()["skipped_files"] == dataset.metrics()["skipped_rows"] == 0
    assert "damaged" not in f"{caplog.text}{dataset.verdict()}{dataset.describe()}"


def test_a_combination_lists_what_its_datasets_left_out(folder: Path) -> None:
    parts = [made(str(folder))[1], made(str(folder / "0.parquet"))[1]]
    loader = combine(parts, batch_size=7, num_workers=0)
    dataset = loader.dataset
    assert names(dataset) == ["1.parquet", "2.parquet"]
    assert dataset.metrics()["skipped_files"] == 2
    assert sorted(ids(loader)) == sorted(ids_of_files([0, 3, 0]))


# ------------------------------------------------------------------------------------------------------- what is not


def test_all_files_damaged_is_an_error(folder: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"would leave out all 2 file\(s\).*1\.parquet"):
        made([str(folder / "1.parquet"), str(folder / "2.parquet")])


@pytest.mark.parametrize("mode", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_damage_after_the_loader_was_created_is_an_error_with_a_remedy(tmp_path: Path, mode: str) -> None:
    folder = folder_of(tmp_path)
    loader, _ = made(str(folder), num_workers=1, worker_mode=mode)
    spoil_quietly(folder / "3.parquet")
    with pytest.raises(DamagedFileError, match=r"3\.parquet") as caught:
        ids(loader)
    assert "leaves out files that are damaged when it is called" in "".join(caught.value.__notes__)
    assert names(made(str(folder))[1]) == ["3.parquet"]


def test_a_changed_file_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    loader, _ = made(str(folder))
    spoil(folder / "3.parquet", cut_in_half)
    with pytest.raises(FileChangedError):
        ids(loader)


def test_columns_of_other_types_are_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    write_parquet(pa.table({"id": ["a"], "word": ["b"]}), folder / "1.parquet")
    with pytest.raises(SchemaMismatchError):
        made(str(folder))


def test_text_that_does_not_fit_its_column_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "csv", write_csv, MANY)
    spoil(folder / "1.csv", late(b"seven,word\n"))
    with pytest.raises(SchemaMismatchError, match=r"'seven' cannot be read as int64"):
        made(str(folder))


def test_an_error_of_a_transform_is_an_error(tmp_path: Path) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            raise ValueError("not my day")
        return batch

    loader, _ = made(str(folder_of(tmp_path)), transform=fail)
    with pytest.raises(ValueError, match="not my day"):
        ids(loader)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "1.parquet").chmod(0)
    with pytest.raises(FileReadError, match=r"1\.parquet"):
        made(str(folder))


@pytest.mark.parametrize("value", ["ignore", True, None])
def test_other_values_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(OptionError, match="on_error"):
        made(str(tmp_path), on_error=value)


def test_tables_of_other_formats_do_not_take_it() -> None:
    with pytest.raises(UnknownOptionError, match="on_error"):
        TableDataset.create_dataloader(object(), on_error="skip")  # type: ignore[arg-type,call-arg]


# ------------------------------------------------------------------------------------------------- a store that fails


class FailingServer(BaseHTTPRequestHandler):
    """Serves files with ranges; fails requests for the first bytes of 1.parquet, as `fault` says."""

    folder: ClassVar[Path]
    fault: ClassVar[str] = ""
    failed: ClassVar[int] = 0

    def do_HEAD(self) -> None:
        data = (self.folder / self.path.lstrip("/")).read_bytes()
        self._head(200, len(data))

    def do_GET(self) -> None:
        data = (self.folder / self.path.lstrip("/")).read_bytes()
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        start, stop = int(first), int(last) + 1
        if self.fault and self.path == "/1.parquet" and start < 1000:
            type(self).failed += 1
            if self.fault != "closed":
                self._head(int(self.fault), 0)
                return
            self._head(206, stop - start, f"bytes {start}-{stop - 1}/{len(data)}")
            self.wfile.write(data[start : start + 10])
            self.close_connection = True
            return
        self._head(206, stop - start, f"bytes {start}-{stop - 1}/{len(data)}")
        self.wfile.write(data[start:stop])

    def _head(self, status: int, length: int, span: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path, fault: str) -> Iterator[tuple[str, type[FailingServer]]]:
    class Handler(FailingServer):
        pass

    Handler.folder, Handler.fault = folder, fault
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", Handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def big_folder(tmp_path: Path) -> Path:
    """Files that do not fit what is read of them with their footers."""
    for number in range(3):
        pq.write_table(
            pa.table({"id": np.random.default_rng(number).permutation(30_000)}), tmp_path / f"{number}.parquet"
        )
    return tmp_path


@pytest.mark.parametrize("fault", ["500", "403", "404", "closed"])
def test_an_error_of_the_store_while_files_are_checked_is_raised(
    big_folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_TRIES", 2)
    retries._retrying.cache_clear()
    with served(big_folder, fault) as (url, server):
        with pytest.raises(FileReadError, match=r"1\.parquet") as caught:
            made([f"{url}/{number}.parquet" for number in range(3)])
        assert server.failed
    assert not isinstance(caught.value, DamagedFileError)
    retries._retrying.cache_clear()


def test_a_damaged_file_of_a_store_is_left_out(big_folder: Path) -> None:
    spoil(big_folder / "1.parquet", wiped(2000, 90_000))
    with served(big_folder, "") as (url, _):
        loader, dataset = made([f"{url}/{number}.parquet" for number in range(3)], batch_size=1000)
        assert names(dataset) == ["1.parquet"]
        assert len(ids(loader)) == 60_000


# ------------------------------------------------------------------------------------------------------------ states


def test_a_resumed_epoch_delivers_the_rest(folder: Path) -> None:
    loader, _ = made(str(folder), shuffle=True)
    whole = ids(loader)
    loader, _ = made(str(folder), shuffle=True)
    batches = iter(loader)
    begun = ids([next(batches) for _ in range(3)])
    state = loader.state_dict()
    loader, _ = made(str(folder), shuffle=True)
    loader.load_state_dict(json.loads(json.dumps(state)))
    assert begun + ids(loader) == whole


def test_a_state_that_left_out_other_files_is_refused_by_name(folder: Path) -> None:
    state = made(str(folder))[0].state_dict()
    write_parquet(table(1), folder / "1.parquet")
    loader, _ = made(str(folder))
    with pytest.raises(
        CheckpointMismatchError, match=r"skipped: 1\.parquet, 2\.parquet .*in the state, 2\.parquet"
    ) as caught:
        loader.load_state_dict(state)
    assert "files: 2 files, 80 rows" in str(caught.value)


def test_a_state_fits_where_other_secrets_are_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [made(str(folder), num_ranks=2, rank=0)[0].state_dict()]
    monkeypatch.setattr(known, "_known", {})
    monkeypatch.setattr(known, "_longest_first", ())
    remember_secrets({"secret": "1.parquet"})
    loader, dataset = made(str(folder), num_ranks=2, rank=1)
    states.append(loader.state_dict())
    assert states[1]["data"]["skipped"][1] == "***, 2.parquet"
    loader.load_state_dict(merge_state_dicts(states))
    assert "parquet" not in repr(dataset._source.skipped[0].name)


def test_a_state_still_fits_once_the_damaged_files_are_removed(folder: Path) -> None:
    state = made(str(folder))[0].state_dict()
    for name in ("1.parquet", "2.parquet"):
        (folder / name).unlink()
    loader, _ = made(str(folder), on_error="raise")
    loader.load_state_dict(state)
    assert ids(loader) == ids_of_files([0, 3])


# ---------------------------------------------------------------------------------------------------- manifest files


def test_a_manifest_keeps_the_result(folder: Path, tmp_path: Path) -> None:
    kept = {"manifest": str(tmp_path / "m.parquet")}
    first = made(str(folder), **kept)[1]
    spoil_quietly(folder / "3.parquet")  # decoding it again would find this
    _, dataset = made(str(folder), **kept)
    assert names(dataset) == ["1.parquet", "2.parquet"]
    assert dataset._source.skipped == first._source.skipped
    assert names(made(str(folder))[1]) == ["1.parquet", "2.parquet", "3.parquet"]
    assert not manifest_changes(str(folder), kept["manifest"], ReadOptions()).any


def test_a_manifest_made_without_the_option_is_completed(folder: Path, tmp_path: Path) -> None:
    kept = {"manifest": str(tmp_path / "m.parquet")}
    write_parquet(table(2), folder / "2.parquet")
    made(str(folder), on_error="raise", **kept)
    before = Path(kept["manifest"]).read_bytes()
    assert names(made(str(folder), **kept)[1]) == ["1.parquet"]
    assert Path(kept["manifest"]).read_bytes() != before
    spoil_quietly(folder / "3.parquet")
    assert names(made(str(folder), **kept)[1]) == ["1.parquet"]


def test_a_repaired_file_is_read_again_and_a_removed_one_forgotten(folder: Path, tmp_path: Path) -> None:
    kept = {"manifest": str(tmp_path / "m.parquet")}
    made(str(folder), **kept)
    write_parquet(table(1), folder / "1.parquet")
    loader, dataset = made(str(folder), **kept)
    assert names(dataset) == ["2.parquet"]
    assert ids(loader) == ids_of_files([0, 1, 3])
    (folder / "2.parquet").unlink()
    loader, dataset = made(str(folder), **kept)
    assert names(dataset) == []
    assert ids(loader) == ids_of_files([0, 1, 3])


def test_what_is_no_file_in_place_of_a_damaged_one_is_never_opened(folder: Path, tmp_path: Path) -> None:
    kept = {"manifest": str(tmp_path / "m.parquet")}
    made(str(folder), **kept)
    for name, make in (("1.parquet", os.mkfifo), ("2.parquet", os.mkdir)):
        (folder / name).unlink()
        make(folder / name)
    loader, dataset = made(str(folder), **kept)  # reading from a pipe would wait without end
    assert names(dataset) == []
    assert ids(loader) == ids_of_files([0, 3])


def test_a_file_repaired_in_vain_stays_left_out(folder: Path, tmp_path: Path) -> None:
    kept = {"manifest": str(tmp_path / "m.parquet")}
    made(str(folder), **kept)
    spoil(folder / "1.parquet", cut_in_half)
    spoil(folder / "2.parquet", lambda data: pq_bytes(tmp_path, 4, 60))
    for _ in range(2):
        _, dataset = made(str(folder), **kept)
        assert names(dataset) == ["1.parquet", "2.parquet"]
        assert [file.size for file in dataset._source.skipped] == [
            (folder / name).stat().st_size for name in ("1.parquet", "2.parquet")
        ]


def pq_bytes(tmp_path: Path, start: int, stop: int) -> bytes:
    """A file with a whole footer and a damaged page."""
    write_parquet(table(2), tmp_path / "other.parquet")
    return wiped(start, stop)((tmp_path / "other.parquet").read_bytes())


def test_without_the_option_a_manifest_leaves_nothing_out(folder: Path, tmp_path: Path) -> None:
    kept = {"manifest": str(tmp_path / "m.parquet"), "on_error": "raise"}
    made(str(folder), **{**kept, "on_error": "skip"})
    with pytest.raises(DamagedFileError, match=r"2\.parquet, footer"):
        made(str(folder), **kept)
    write_parquet(table(2), folder / "2.parquet")
    with pytest.raises(DamagedFileError, match=r"1\.parquet, row group 0"):
        ids(made(str(folder), **kept)[0])
    write_parquet(table(1), folder / "1.parquet")
    assert ids(made(str(folder), **kept)[0]) == ids_of_files([0, 1, 2, 3])
