"""Loaders whose transform fails for some rows: which rows are delivered, marked or left out, reported, resumed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather, orc

from tests.resume.helpers import KEPT, batches, through_json, write_files
from tests.transforms.test_images import png
from torch_dataloader_utils import (
    FileReadError,
    Fill,
    OptionError,
    Pack,
    Processes,
    RowErrors,
    RowFailedEvent,
    StructuredDataset,
    TooManyErrors,
    Transform,
    UnsupportedTypeError,
    combine,
    stream,
)
from torch_dataloader_utils.transforms import DecodeImages

BAD = {0, 5, 6, 17, 37}  # of the rows 0 to 37 of `write_files`
ROWS = range(38)


class FailsFor:
    """A transform that raises for a block with one of these rows; `calls` counts, in this process."""

    def __init__(self, bad: Iterable[int], knows: bool = False) -> None:
        self.bad, self.knows, self.calls = set(bad), knows, 0

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        ids = rows.column("id").to_pylist()
        found = {place: ValueError(f"bad {row}") for place, row in enumerate(ids) if row in self.bad}
        if found:
            raise RowErrors(found) if self.knows else next(iter(found.values()))
        return rows


def fails(bad: Iterable[int] = BAD, **options: Any) -> Transform:
    given: dict[str, Any] = {"on_error": "skip", "max_errors": 1.0} | options
    return Transform(FailsFor(bad), **given)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("rows"))


def make(path: str, **options: Any) -> Any:
    given: dict[str, Any] = {"transform": fails(), "batch_size": 4, "num_ranks": 1, "rank": 0} | options
    return stream(path, **given)


def held(loaded: Iterable[Any]) -> tuple[list[int], list[bool]]:
    """The ids of all batches, and which of them are valid."""
    ids, valid = [], []
    for batch in loaded:
        ids += batch["id"].tolist() if hasattr(batch["id"], "tolist") else batch["id"].to_pylist()
        valid += batch["valid"].tolist() if hasattr(batch["valid"], "tolist") else batch["valid"].to_pylist()
    return ids, valid


def good_of(loaded: Iterable[Any]) -> list[int]:
    return [row for row, real in zip(*held(loaded), strict=True) if real]


def events_of(loader: Any) -> list[RowFailedEvent]:
    found: list[RowFailedEvent] = []
    loader.on_event(lambda event: found.append(event) if isinstance(event, RowFailedEvent) else None)
    return found


# ------------------------------------------------------------------------------------------------------- known counts


@pytest.mark.parametrize("shuffle", [False, True, "all", "splits"])
@pytest.mark.parametrize(
    "workers",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_mode": Processes(context="fork")}],
    ids=["in line", "threads", "processes"],
)
def test_a_failed_row_keeps_its_place_and_is_marked(path: str, shuffle: Any, workers: dict[str, Any]) -> None:
    loader = make(path, shuffle=shuffle, **workers)
    plain = stream(path, shuffle=shuffle, batch_size=4, num_ranks=1, rank=0, **workers)
    order = [row for batch in plain for row in batch["id"].tolist()]
    seen = events_of(loader)
    ids, valid = held(loader)
    assert [row for row, real in zip(order, valid, strict=True) if not real] == [row for row in order if row in BAD]
    assert [row for row, real in zip(ids, valid, strict=True) if real] == [row for row in order if row not in BAD]
    assert len(loader) == len(plain)
    assert sorted(int(event.row.error.split()[1]) for event in seen) == sorted(BAD)
    assert loader.metrics(total=True)["rows_failed"] == len(BAD)
    loader.close()


def test_the_place_of_a_failed_row_holds_the_nearest_good_row_before_it_else_after(path: str) -> None:
    ids, valid = held(make(path, split_rows=100))
    # Tasks are the files: rows 0 to 13, 14 to 21, ...
    assert ids == [{0: 1, 5: 4, 6: 4, 17: 16, 37: 36}.get(row, row) for row in ROWS]
    assert valid == [row not in BAD for row in ROWS]


def test_or_a_value_by_column(path: str) -> None:
    loader = make(path, transform=fails(on_error=Fill({"name": "none"})))
    names = [name for batch in loader for name in batch["name"]]
    assert names == ["none" if row in BAD else f"row {row}" for row in ROWS]
    ids, valid = held(make(path, transform=fails(on_error=Fill(-1))))
    assert ids == [-1 if row in BAD else row for row in ROWS]
    assert valid == [row not in BAD for row in ROWS]


@pytest.mark.parametrize("output", ["torch", "numpy", "arrow", "dict"])
def test_in_each_output_format(path: str, output: Any) -> None:
    ids, valid = [], []
    for batch in make(path, output_format=output):
        ids += list(batch["id"].to_pylist() if output == "arrow" else batch["id"])
        valid += list(batch["valid"].to_pylist() if output == "arrow" else batch["valid"])
    assert [bool(real) for real in valid] == [row not in BAD for row in ROWS]


@pytest.mark.parametrize("form", ["numpy", "torch", "pandas", "polars"])
def test_in_each_format_of_rows(path: str, form: Any) -> None:
    pytest.importorskip(form)

    def transform(rows: Any) -> Any:
        if set(np.asarray(rows["id"]).tolist()) & BAD:
            raise KeyError("bad")
        return rows

    loader = make(path, transform=Transform(transform, format=form, on_error="skip", max_errors=5))
    assert loader.describe().transform == "rows for which it fails are filled, and masked, up to 5 rows"
    assert good_of(loader) == [row for row in ROWS if row not in BAD]


def test_a_chain_knows_its_rows(path: str) -> None:
    chain: list[Any] = [FailsFor(BAD, knows=True), lambda rows: rows, FailsFor({9}, knows=True)]
    loader = make(path, transform=Transform(chain, on_error="skip", max_errors=6))
    assert good_of(loader) == [row for row in ROWS if row not in BAD | {9}]
    first = chain[0]
    assert isinstance(first, FailsFor)
    first.calls = 0
    list(make(path, transform=Transform(first, on_error="skip", max_errors=5), num_workers=0, split_rows=100))
    assert first.calls == 5 + 3  # one for each of five tasks, and of the three with bad rows another


@pytest.mark.parametrize("options", [{"even": "pad"}, {"last_batch": "wrap"}, {"steps_per_epoch": 7}])
def test_repeats_of_a_failed_row_are_no_more_valid(path: str, options: dict[str, Any]) -> None:
    for _ in range(2):
        loaders = [make(path, num_ranks=3, rank=rank, shuffle=True, batch_size=4, **options) for rank in range(3)]
        seen = [events_of(loader) for loader in loaders]
        steps = [batches(loader) for loader in loaders]
        assert "last_batch" in options or len({len(each) for each in steps}) == 1
        good = [row for each in steps for b in each for row, real in zip(b["id"], b["valid"], strict=True) if real]
        expected = [row for row in ROWS if row not in BAD]
        assert sorted(good) == expected if "steps_per_epoch" not in options else set(good) <= set(expected)
        assert len(good) == len(set(good))
        failed = [int(event.row.error.split()[1]) for each in seen for event in each]
        assert sorted(failed) == sorted(set(failed))  # told once, not for each repeat


def test_bad_images_leave_equal_steps_on_three_ranks_and_resume_exactly(tmp_path: Path) -> None:
    rows, bad = 600, {17, 203, 204, 388, 401, 599}  # 1 %
    for file in range(3):
        ids = range(file * 200, file * 200 + 200)
        images = [png(row)[:40] if row in bad else png(row) for row in ids]
        pq.write_table(pa.table({"id": ids, "image": images}), tmp_path / f"{file}.parquet", row_group_size=50)

    def loader(rank: int) -> Any:
        given: dict[str, Any] = {"even": "drop", "shuffle": True, "batch_size": 8, "num_workers": 2}
        transform = Transform(DecodeImages("image", (6, 8)), on_error="skip")
        return stream(tmp_path, transform=transform, num_ranks=3, rank=rank, **given)

    whole = [batches(loader(rank)) for rank in range(3)]
    assert [len(each) for each in whole] == [25] * 3
    valid = [row for each in whole for b in each for row, real in zip(b["id"], b["valid"], strict=True) if real]
    assert sorted(valid) == [row for row in range(rows) if row not in bad]
    for rank in range(3):
        for steps in (1, 12, 24):
            first = loader(rank)
            for _ in zip(range(steps), first, strict=False):
                pass
            resumed = loader(rank)
            resumed.load_state_dict(through_json(first.state_dict()))
            assert batches(resumed) == whole[rank][steps:]
            first.close()


# ----------------------------------------------------------------------------------------------------- unknown counts


@pytest.mark.parametrize("shuffle", [False, True, "all"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("output", ["torch", "arrow"])
def test_where_counts_are_unknown_a_failed_row_is_left_out(
    path: str, shuffle: Any, num_workers: int, output: Any
) -> None:
    processes = {"worker_mode": Processes(context="fork")} if num_workers else {}
    given: dict[str, Any] = {"num_workers": num_workers, "output_format": output, **processes}
    loader = make(path, filters=KEPT, shuffle=shuffle, split_rows=6, **given)
    ids, valid = held(loader)
    assert all(valid)
    assert sorted(ids) == [row for row in ROWS if row % 3 and row not in BAD]
    assert loader.metrics(total=True)["rows_failed"] == len([row for row in BAD if row % 3])
    loader.close()


@pytest.mark.parametrize("shuffle", [False, True, "all"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_then_each_step_resumes_exactly(path: str, shuffle: Any, num_workers: int) -> None:
    def loader() -> Any:
        return make(path, filters=KEPT, shuffle=shuffle, num_workers=num_workers, batch_size=3, split_rows=6)

    whole, first = batches(loader()), loader()
    states = [first.state_dict(), *(first.state_dict() for _ in first)]
    for step, state in enumerate(states[:-1]):
        resumed = loader()
        resumed.load_state_dict(through_json(state))
        assert batches(resumed) == whole[step:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_error_that_comes_and_goes_changes_its_own_row_alone(path: str, shuffle: Any) -> None:
    """Before a resume, other rows fail than after it: each good row is delivered once, and no other is missing."""
    for steps in range(1, 7):
        for before, after in ((BAD, set()), (set(), BAD), ({5, 7}, {8, 11, 13}), ({14, 16, 17}, {1, 2, 4})):
            given: dict[str, Any] = {"filters": KEPT, "shuffle": shuffle, "batch_size": 3, "num_workers": 0}
            first = make(path, transform=fails(before), **given)
            taken = held(batch for _, batch in zip(range(steps), first, strict=False))[0]
            resumed = make(path, transform=fails(after), **given)
            resumed.load_state_dict(through_json(first.state_dict()))
            rest = held(resumed)[0]
            first.close()
            assert len(set(taken + rest)) == len(taken + rest)
            missing = {row for row in ROWS if row % 3} - set(taken + rest)
            assert missing <= before | after
            assert not missing & (after - before) & set(taken)


def test_the_rest_goes_to_other_ranks(path: str) -> None:
    given: dict[str, Any] = {"filters": KEPT, "shuffle": True, "batch_size": 3, "num_workers": 0, "split_rows": 6}
    first = make(path, **given)
    taken = held(batch for _, batch in zip(range(3), first, strict=False))[0]
    state = through_json(first.state_dict())
    first.close()
    for rank in range(2):
        other = make(path, **given | {"num_ranks": 2, "rank": rank})
        other.load_state_dict(state)
        taken += held(other)[0]
    assert sorted(taken) == [row for row in ROWS if row % 3 and row not in BAD]


def test_steps_are_equal_by_their_number(path: str) -> None:
    loaders = [make(path, filters=KEPT, num_ranks=2, rank=rank, steps_per_epoch=6, num_workers=0) for rank in range(2)]
    assert [len(batches(loader)) for loader in loaders] == [6, 6]


def test_a_transform_of_any_number_of_rows_leaves_them_out(path: str) -> None:
    def twice(rows: pa.RecordBatch) -> pa.RecordBatch:
        FailsFor(BAD)(rows)
        return rows.take(np.repeat(np.arange(rows.num_rows), 2))

    loader = make(path, transform=Transform(twice, rows="any", on_error="skip", max_errors=5))
    assert held(loader)[0] == [row for row in ROWS if row not in BAD for _ in range(2)]


# ------------------------------------------------------------------------------------------------ packing and buckets


def to_documents(rows: pa.RecordBatch) -> pa.RecordBatch:
    tokens = [[row] * (row % 5 + 1) for row in rows.column("id").to_pylist()]
    return pa.record_batch({"input_ids": pa.array(tokens, pa.list_(pa.int64()))})


def tokens_of(loaded: Iterable[Any]) -> list[int]:
    found: list[int] = []
    for batch in loaded:
        assert "valid" not in batch
        real = batch["document_ids"] >= 0 if "document_ids" in batch else slice(None)
        found += batch["input_ids"][real].tolist()
    return found


EXPECTED = sorted(row for row in ROWS if row not in BAD for _ in range(row % 5 + 1))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_failed_document_has_no_tokens(path: str, shuffle: bool) -> None:
    transform = Transform([FailsFor(BAD), to_documents], on_error="skip", max_errors=5)
    loader = make(path, transform=transform, pack=16, shuffle=shuffle)
    assert sorted(tokens_of(loader)) == EXPECTED
    wrapped = make(path, transform=transform.replace(max_errors=10), pack=Pack(16, method="wrap"), count_rows=True)
    found = tokens_of(wrapped)
    assert len(EXPECTED) - 16 < len(found) <= len(EXPECTED)
    assert found == EXPECTED[: len(found)]


def test_other_documents_than_those_counted_are_an_error_that_says_so(path: str) -> None:
    transform = FailsFor({5})
    chain: list[Any] = [transform, to_documents]
    given: dict[str, Any] = {"pack": Pack(16, method="wrap"), "count_rows": True, "num_workers": 0}
    loader = make(path, transform=Transform(chain, on_error="skip"), **given)
    transform.bad = {7}
    with pytest.raises(FileReadError, match="failed for other documents than when they were counted"):
        list(loader)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_failed_row_is_in_no_batch_of_a_budget(path: str, shuffle: bool) -> None:
    def both(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.append_column("tokens", to_documents(FailsFor(BAD)(rows)).column(0))

    transform = Transform(both, on_error="skip", max_errors=5)
    loader = make(path, transform=transform, batch_tokens=12, batch_size=8, shuffle=shuffle)
    for batch in loader:
        lengths = batch["tokens"]["offsets"].diff()
        assert lengths.tolist() == [row % 5 + 1 for row in batch["id"].tolist()]
    assert sorted(held(loader)[0]) == [row for row in ROWS if row not in BAD]


def test_a_document_over_the_budget_is_named_by_its_row(path: str) -> None:
    def both(rows: pa.RecordBatch) -> pa.RecordBatch:
        ids = FailsFor({0, 1})(rows).column("id").to_pylist()
        tokens = pa.array([[row] * (30 if row == 4 else 2) for row in ids], pa.list_(pa.int64()))
        return rows.append_column("tokens", tokens)

    loader = make(
        path, transform=Transform(both, on_error="skip"), batch_tokens={"tokens": 12, "long": "error"}, num_workers=0
    )
    with pytest.raises(OptionError, match="has length 30"):
        list(loader)


# ---------------------------------------------------------------------------------------------------- too many, told


def test_more_than_a_number_of_errors_is_an_error(path: str) -> None:
    assert len(good_of(make(path, transform=fails(max_errors=5)))) == len(ROWS) - 5
    loader = make(path, transform=fails(max_errors=4), num_workers=0)
    with pytest.raises(TooManyErrors) as caught:
        list(loader)
    text = str(caught.value)
    assert (
        "failed for 5 of the 38 rows read, more than max_errors=4 allows; most often with ValueError (5 rows)" in text
    )
    assert text.count("part-") == 3
    assert (
        f"row 0 of {path}/part-0.parquet: ValueError: bad 0; row 5 of {path}/part-0.parquet: ValueError: bad 5" in text
    )
    with pytest.raises(TooManyErrors):
        list(make(path, transform=fails(max_errors=0)))


def test_a_share_counts_the_rows_read_and_allows_ten(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(4000)}), tmp_path / "a.parquet", row_group_size=500)
    few = make(str(tmp_path), transform=Transform(FailsFor(range(10)), on_error="skip", max_errors=0.0), batch_size=100)
    assert len(good_of(few)) == 3990
    with pytest.raises(TooManyErrors, match=r"11 of the 4,000 rows read, more than max_errors=0.001"):
        list(make(str(tmp_path), transform=Transform(FailsFor(range(11)), on_error="skip", max_errors=0.001)))
    allowed = Transform(FailsFor(range(3000, 3040)), on_error="skip")  # 1 %
    assert len(good_of(make(str(tmp_path), transform=allowed, batch_size=100))) == 3960
    many = Transform(FailsFor(range(0, 4000, 50)), on_error="skip")  # 2 %
    with pytest.raises(TooManyErrors):
        list(make(str(tmp_path), transform=many))


def test_rows_that_all_fail_are_an_error(path: str) -> None:
    with pytest.raises(TooManyErrors, match=r"part-0.parquet, row groups .*failed for all rows.*ValueError: bad 0"):
        list(make(path, transform=fails(range(14)), num_workers=0))
    # Of a row group that ranks share, another row than theirs may be good.
    loaders = [
        make(path, transform=fails(range(13)), num_ranks=3, rank=rank, sharding="contiguous") for rank in range(3)
    ]
    assert sorted(row for loader in loaders for row in good_of(loader)) == list(range(13, 38))
    both = fails(range(14), on_error=Fill({"id": -1, "name": "none"}))
    assert good_of(make(path, transform=both)) == list(range(14, 38))
    assert held(make(path, transform=fails(range(14)), filters=KEPT))[0] == [row for row in range(14, 38) if row % 3]


def test_errors_of_calls_are_raised(path: str) -> None:
    def raises(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:
            raise UnsupportedTypeError("no such type")
        return rows

    with pytest.raises(UnsupportedTypeError, match="no such type"):
        list(make(path, transform=Transform(raises, on_error="skip")))
    with pytest.raises(UnsupportedTypeError, match=r"expected a pyarrow.RecordBatch"):
        list(make(path, transform=Transform(lambda rows: None if rows.num_rows else rows, on_error="skip")))


def test_a_warning_tells_of_the_first_of_a_kind_and_of_the_tenth(path: str, caplog: pytest.LogCaptureFixture) -> None:
    def raises(rows: pa.RecordBatch) -> pa.RecordBatch:
        ids = rows.column("id").to_pylist()
        if any(row < 12 for row in ids):
            raise KeyError("low") if any(row == 3 for row in ids) and len(ids) == 1 else ValueError(f"bad {ids[0]}")
        return rows

    loader = make(path, transform=Transform(raises, on_error="skip", max_errors=12), num_workers=0, split_rows=100)
    with caplog.at_level(logging.WARNING):
        list(loader)
    told = [record.getMessage() for record in caplog.records if "a transform failed" in record.getMessage()]
    file, goes_on = f"{path}/part-0.parquet", "on_error= goes on without it"
    assert told == [
        f"epoch 0: a transform failed for row 0 of {file} with ValueError; {goes_on}: bad 0",
        f"epoch 0: a transform failed for row 3 of {file} with KeyError; {goes_on}: 'low'",
        f"epoch 0: a transform failed for row 10 of {file} with ValueError, the 10th such row; {goes_on}: bad 10",
    ]


def test_an_event_has_no_secret(path: str, caplog: pytest.LogCaptureFixture) -> None:
    def raises(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 5 in rows.column("id").to_pylist():
            raise OSError("https://user:hunter2@example.org/image.png was not found")
        return rows

    loader = make(path, transform=Transform(raises, on_error="skip"))
    seen = events_of(loader)
    with caplog.at_level(logging.WARNING):
        list(loader)
    (event,) = seen
    assert (event.epoch, event.row.file, event.row.row, event.row.kind) == (0, f"{path}/part-0.parquet", 5, "OSError")
    assert "was not found" in event.row.error
    assert "hunter2" not in caplog.text + repr(event)


def test_parts_of_a_combination_have_their_own_numbers(path: str) -> None:
    parts = {
        "a": {"source": path, "transform": fails({3}, max_errors=1)},
        "b": {"source": path, "transform": fails({4, 5, 6}, max_errors=3)},
        "c": path,
    }
    loader = combine(parts, batch_size=6, num_workers=0, shuffle=True)
    assert Counter(good_of(loader)) == Counter([*ROWS] * 3) - Counter([3, 4, 5, 6])
    found = loader.metrics(total=True)
    assert (found["rows_failed"], found["rows_failed/a"], found["rows_failed/b"]) == (4, 1, 3)
    parts["b"] = {"source": path, "transform": fails({4, 5, 6}, max_errors=2)}
    with pytest.raises(TooManyErrors, match="rows read of dataset b"):
        list(combine(parts, batch_size=6, num_workers=0))


# ------------------------------------------------------------------------------------------------------- what is named


@pytest.mark.parametrize("shuffle", [False, True, "all"])
@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("filters", [None, KEPT])
def test_an_error_names_the_file_and_the_row(path: str, shuffle: Any, knows: bool, filters: Any) -> None:
    loader = stream(path, transform=FailsFor({17}, knows), shuffle=shuffle, filters=filters, num_workers=0)
    with pytest.raises(RowErrors if knows else ValueError) as caught:
        list(loader)
    where = f"row 3 of {path}/part-1.parquet"
    text = str(caught.value) if knows else "; ".join(caught.value.__notes__)
    assert where in text
    assert text.count(".parquet") == 1
    if knows:
        assert text == f"1 row failed: {where}: ValueError: bad 17"
    else:
        assert str(caught.value) == "bad 17"


def test_an_error_of_several_rows_names_the_first_three(path: str) -> None:
    loader = stream(
        path, transform=FailsFor({1, 2, 3, 4}, knows=True), num_workers=1, worker_mode=Processes(context="fork")
    )
    with pytest.raises(RowErrors) as caught:
        list(loader)
    first = "; ".join(f"row {row} of {path}/part-0.parquet: ValueError: bad {row}" for row in (1, 2, 3))
    assert str(caught.value) == f"4 rows failed: {first}; ..."
    assert list(caught.value.errors) == [1, 2, 3, 4]
    loader.close()


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "orc", "feather"])
def test_rows_of_other_formats_are_named(tmp_path: Path, form: str, mode: Any) -> None:
    table = pa.table({"id": range(20)})
    file = tmp_path / f"a.{form}"
    if form == "csv":
        csv.write_csv(table, file)
    elif form == "jsonl":
        file.write_text("".join(f'{{"id": {row}}}\n' for row in range(20)))
    else:
        (orc.write_table if form == "orc" else feather.write_feather)(table, str(file))
    loader = stream(file, transform=Transform(FailsFor({7}), on_error=mode), num_workers=0, batch_size=20)
    seen = events_of(loader)
    text = form in ("csv", "jsonl")
    if mode == "raise":
        with pytest.raises(ValueError, match="bad 7") as caught:
            list(loader)
        assert f"row 7 of {'byte range 0 of ' if text else ''}{file}" in "".join(caught.value.__notes__)
    else:
        assert good_of(loader) == [row for row in range(20) if row != 7]
        assert [(event.row.row, event.row.segment) for event in seen] == [(7, 0 if text else None)]


def test_an_error_that_does_not_come_again_names_the_file(path: str) -> None:
    class Once(FailsFor):
        def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
            if rows.num_rows and self.bad:
                self.bad = set()
                raise ValueError("now and then")
            return rows

    loader = stream(f"{path}/part-1.parquet", transform=Once({1}), num_workers=0)
    with pytest.raises(ValueError, match="now and then") as caught:
        list(loader)
    assert "part-1.parquet, row groups 0, 1" in "".join(caught.value.__notes__)


# ------------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"on_error": "ignore"}, "expected 'raise', 'skip' or Fill"),
        ({"on_error": None}, "expected 'raise', 'skip' or Fill"),
        ({"on_error": "skip", "max_errors": -1}, "expected a share of rows"),
        ({"on_error": "skip", "max_errors": 1.5}, "expected a share of rows"),
        ({"on_error": "skip", "max_errors": True}, "expected a share of rows"),
        ({"max_errors": 3}, "with on_error='raise'"),
    ],
)
def test_other_values_are_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        Transform(FailsFor(BAD), **given)


def test_what_cannot_be_filled_is_refused_at_construction(path: str) -> None:
    with pytest.raises(OptionError, match="column 'id' holds int64, and no 'x'"):
        make(path, transform=fails(on_error=Fill({"id": "x"})))
    with pytest.raises(OptionError, match="no column 'other'"):
        make(path, transform=fails(on_error=Fill({"other": 1})))


def test_a_config_says_the_same(path: str) -> None:
    transform = {"function": FailsFor(BAD), "on_error": {"kind": "fill", "value": {"id": -1}}, "max_errors": 5}
    assert held(make(path, transform=transform))[0] == [-1 if row in BAD else row for row in ROWS]


def test_the_mask_needs_a_name_of_its_own(path: str) -> None:
    def renamed(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.rename_columns(["valid", "name"])

    with pytest.raises(OptionError, match="valid_key='valid' is the name of a column"):
        make(path, transform=Transform(renamed, on_error="skip"))
    loader = make(path, transform=Transform(renamed, on_error="skip"), valid_key="real")
    assert set(next(iter(loader))) == {"valid", "name", "real"}


def test_the_first_call_of_0_2_0_has_it_too(path: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(path, transform=fails(), batch_size=38)
    assert good_of(loader) == [row for row in ROWS if row not in BAD]
