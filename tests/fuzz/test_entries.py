"""The public calls refuse what they do not like by errors of the package alone."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fuzz.families import REFUSED, attempt
from tests.fuzz.strange import STRANGE, fresh
from tests.iceberg.relocate import latest_metadata, relocate
from torch_dataloader_utils import IcebergDataset, Rotate, Strided, StructuredDataset, combine, merge_state_dicts
from torch_dataloader_utils.options.keywords import option_defaults

TABLES = Path(__file__).parents[1] / "iceberg" / "tables"
# Functions of the user's own: what they raise is theirs. (A tensor has a method `split`.)
OWN = {
    (option, value)
    for option in ("transform", "collate_fn", "sharding", "split_strategy", "datasets", "storage_options")
    for value in ("class", "lambda", "hostile", "tensor", "hostile list", "hostile dict")
}

Trial = tuple[str, Callable[[], object]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("entries") / "data"
    folder.mkdir()
    for part in range(2):
        rows = pa.table({"x": range(part * 10, part * 10 + 10), "s": ["a"] * 10})
        pq.write_table(rows, folder / f"{part}.parquet", row_group_size=4)
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with strange relative names are made in a folder of the test."""
    monkeypatch.chdir(tmp_path)


def few(made: Any) -> None:
    """Take some batches of a new loader, or of that of a pair."""
    loader = made[0] if isinstance(made, tuple) else made
    for _, _ in zip(range(3), loader, strict=False):
        pass
    loader.close()


def check(trials: Iterator[Trial], share: int) -> None:
    """Make every n-th of the trials, where n is `share`; none may raise a foreign error."""
    chosen = [trial for number, trial in enumerate(trials) if number % share == 0]
    found = [(label, attempt(call)[1]) for label, call in chosen]
    assert len(found) > 10
    assert REFUSED in {outcome for _, outcome in found}
    assert [(label, outcome) for label, outcome in found if outcome not in ("", REFUSED)] == []


def options_of(call: Any, name: str, make: Callable[..., tuple[Any, Any]]) -> Iterator[Trial]:
    """A call for each option with each strange value."""
    for option in option_defaults(call):
        for value in STRANGE:
            if (option, value) not in OWN:
                given = {"num_workers": 0, option: fresh(value)}
                yield f"{name} {option}={value}", lambda given=given: few(make(**given))  # type: ignore[misc]


SHARE = 1 if os.environ.get("ALL_ENTRIES") else 13


def test_options_of_files(data: Path) -> None:
    check(options_of("files", "files", lambda **given: StructuredDataset.create_dataloader(data, **given)), SHARE)


def test_options_of_combinations(data: Path) -> None:
    check(options_of("combine", "combine", lambda **given: combine([data], **given)), SHARE)


def test_options_of_iceberg_tables(tmp_path: Path) -> None:
    table = relocate(latest_metadata(TABLES / "db" / "refs"), TABLES, tmp_path)
    check(options_of("iceberg", "iceberg", lambda **given: IcebergDataset.create_dataloader(table, **given)), SHARE * 5)


def test_paths_tables_and_datasets(data: Path) -> None:
    _, part = StructuredDataset.create_dataloader(data, num_workers=0)

    def trials() -> Iterator[Trial]:
        for value in STRANGE:
            yield f"path {value}", lambda value=value: few(StructuredDataset.create_dataloader(fresh(value)))  # type: ignore[misc]
            yield (
                f"path list {value}",
                lambda value=value: few(StructuredDataset.create_dataloader([data, fresh(value)])),  # type: ignore[misc]
            )
            yield f"table {value}", lambda value=value: few(IcebergDataset.create_dataloader(fresh(value)))  # type: ignore[misc]
            if ("datasets", value) not in OWN:
                yield f"datasets {value}", lambda value=value: few(combine(fresh(value)))  # type: ignore[misc]
                yield f"datasets list {value}", lambda value=value: few(combine([part, fresh(value)]))  # type: ignore[misc]
            yield f"weights {value}", lambda value=value: few(combine([part], weights=fresh(value)))  # type: ignore[misc]
            yield f"weights list {value}", lambda value=value: few(combine([part], weights=[fresh(value)]))  # type: ignore[misc]

    check(trials(), 1)


# Keyword -> values of each method of a dataset that takes a value; what is documented to raise a builtin is left out.
def methods(dataset: Any, loader: Any) -> Iterator[Trial]:
    """Each method of a loader and a dataset that takes a value."""
    calls: dict[str, Callable[[Any], object]] = {
        "set_epoch": dataset.set_epoch,
        "plan epoch": dataset.plan,
        "plan rank": lambda value: dataset.plan(rank=value),
        "describe": dataset.describe,
        "plan_page": dataset.plan_page,
        "plan_page epoch": lambda value: dataset.plan_page("page.html", value),
        "shard_size rank": dataset.shard_size,
        "shard_size epoch": lambda value: dataset.shard_size(None, value),
        "rows_of epoch": lambda value: dataset.rows_of(value, 0),
        "rows_of step": lambda value: _but(IndexError, lambda: dataset.rows_of(0, value)),
        "rows_of rank": lambda value: dataset.rows_of(0, 0, value),
        "load_state_dict": dataset.load_state_dict,
        "load_state_dict of the loader": loader.load_state_dict,
        "check_state": dataset._passes.codec.position,
        "skip_steps first": lambda value: dataset.skip_steps(value, 2),
        "skip_steps last": lambda value: dataset.skip_steps(0, value),
        "vocabulary": dataset.vocabulary,
        "merge_state_dicts": merge_state_dicts,
        "merge_state_dicts list": lambda value: merge_state_dicts([value]),
    }
    for name, call in calls.items():
        for value in STRANGE:
            if value != "endless":
                yield f"{name} {value}", lambda call=call, value=value: call(fresh(value))  # type: ignore[misc]


def _but(kind: type[Exception], call: Callable[[], object]) -> None:
    with suppress(kind):
        call()


def test_methods_of_datasets_and_loaders(data: Path) -> None:
    loader, dataset = StructuredDataset.create_dataloader(data, num_workers=0, batch_size=4)
    check(methods(dataset, loader), 1)


def test_options_together(data: Path) -> None:
    """Any value of one option with any of another: either works, or is refused."""
    choices: dict[str, list[Any]] = {
        "sharding": [
            *("interleave", "contiguous", "strided", "rotate", "auto"),
            *({"kind": "rotate", "total_shards": 4}, Rotate(3), Strided("split_batch")),
        ],
        "even": ["none", "drop", "pad"],
        "last_batch": ["partial", "drop", "pad", "wrap"],
        "shuffle": [False, True, "splits", "all"],
        "steps_per_epoch": [None, 1, 7],
        "canonical_ranks": [None, 1, 4],
        "count_rows": [False, True],
        "filters": [None, [("x", ">", 3)], [("s", "in", [])]],
        "batch_size": [1, 3, 1000],
        "num_ranks": [None, 1, 3],
        "split_rows": [None, 1, 5],
        "output_format": ["torch", "numpy", "arrow", "dict"],
        "stack": [None, {"z": ["x"]}, {"x": ["x", "x"]}],
        "dtypes": [None, "float32", {"x": "bool"}],
        "strings": ["list", "bytes", "codes"],
        "shuffle_buffer_size": [None, 1, 6],
        "columns": [None, ["x"], ["*"]],
        "num_workers": [0, 1],
    }  # fmt: skip

    def trials() -> Iterator[Trial]:
        draw = Random(5)
        for number in range(4000 if SHARE == 1 else 100):
            given = {name: draw.choice(choices[name]) for name in draw.sample(list(choices), 5)}
            if given.get("num_ranks") is not None:
                given["rank"] = 0
            yield f"{number} {given}", lambda given=given: few(StructuredDataset.create_dataloader(data, **given))  # type: ignore[misc]

    check(trials(), 1)
