"""follow=True with equal steps: passes without rows are empty, small ones are padded, and no row is left out."""

from __future__ import annotations

import json
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests import forkrun
from tests.iceberg.test_advance import SCHEMA, config_of, ids_of, open_table, rows
from tests.iceberg.test_advance import table as table
from torch_dataloader_utils import Follow, Pack, Rotate
from torch_dataloader_utils.errors import CountsRequiredError, OptionError

FOLLOW = {"follow": Follow(wait=0)}


def real(batches: list[Any]) -> list[int]:
    return sorted(row for batch in batches for row in batch["id"][batch["valid"]].tolist())


# What `follow_evenly` of following_jobs.py appends before its passes.
APPENDED = (0, 40, 0, 1, 5, 0, 30)


@pytest.mark.parametrize(
    "options",
    [
        {"even": "pad", "num_workers": 0},
        {"even": "pad", "num_workers": 2},
        {"even": "pad", "num_workers": 2, "worker_mode": "processes"},
        {"even": "pad", "num_workers": 2, "device": "cpu"},
        {"even": "pad", "shuffle": True},
        {"even": "pad", "sharding": "strided"},
        {"even": "pad", "canonical_ranks": 2},
        {"last_batch": "pad", "num_workers": 2},
        {"last_batch": "wrap"},
    ],
    ids=lambda options: ", ".join(map(str, options.values())),
)
def test_each_row_is_real_once(catalog: Catalog, options: dict[str, Any]) -> None:
    table = catalog.create_table("ns.grown", schema=SCHEMA)
    loader, dataset = open_table(table, **FOLLOW, **options)
    first = 0
    for appended in APPENDED:
        if appended:
            table.append(rows(first, first + appended))
        batches = list(loader)
        assert real(batches) == list(range(first, first + appended))
        assert len(batches) == -(-appended // 8)
        first += appended
    dataset.close()


def test_restarts_in_a_pass_and_after_an_empty_one(table: Table) -> None:
    first, state = 0, None
    for appended in (100, 0, 3, 17, 0, 1):
        if first and appended:
            table.append(rows(first, first + appended))
        batches: list[Any] = []
        for most in (1, None):
            loader, _ = open_table(table, **FOLLOW, even="pad")
            if state is not None:
                loader.load_state_dict(state)
            batches += islice(loader, most)
            state = loader.state_dict()
            if not batches:
                break
        assert real(batches) == list(range(first, first + appended))
        assert len(batches) == -(-appended // 8)
        first += appended


def test_counted_rows_that_a_filter_leaves_out(table: Table) -> None:
    loader, _ = open_table(table, **FOLLOW, even="pad", filters="x != 202", count_rows=True)
    assert real(list(loader)) == list(range(100))
    table.append(rows(101, 102))
    assert list(loader) == []
    table.append(rows(102, 105))
    assert real(list(loader)) == [102, 103, 104]
    hidden = pa.table({"id": [110, 120], "x": [0, 404]}, schema=SCHEMA)
    loader, _ = open_table(table, **FOLLOW, even="pad", filters="x = 202", count_rows=True)
    assert real(list(loader)) == [101]
    table.append(hidden)  # its statistics do not rule it out
    assert list(loader) == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_take_equal_steps_through_restarts(catalog: Catalog, tmp_path: Path, ranks: int) -> None:
    config = config_of(tmp_path)
    script = str(Path(__file__).parent / "following_jobs.py")
    arguments = [*forkrun.command(ranks), script, "follow_evenly", json.dumps(config), str(tmp_path)]
    subprocess.run(arguments, check=True, timeout=180)
    jobs = [json.loads((tmp_path / f"{rank}.json").read_text())["tables"] for rank in range(ranks)]
    for number, of_ranks in enumerate(zip(*jobs, strict=True)):
        first = 0
        for appended, passes in zip(APPENDED, zip(*of_ranks, strict=True), strict=True):
            read = sorted(row for batches in passes for batch in batches for row in batch)
            assert {len(batches) for batches in passes} == {-(-len(read) // (ranks * 4))}
            assert [row for row in read if row >= first] == list(range(first, first + appended))
            assert len(set(read)) == len(read)  # older rows, too
            assert number == 2 or len(read) == appended
            first += appended
        # The last pass, from its second step on, on one rank.
        loader, _ = open_table(
            catalog.load_table(f"ns.evenly_{number}"), even="pad", shuffle=True, batch_size=4,
            follow=Follow(wait=0, replay=0.5 if number == 2 else 0.0)
        )  # fmt: skip
        loader.load_state_dict(json.loads((tmp_path / f"{number}.state").read_text()))
        begun = [row for batches in passes for batch in batches[:2] for row in batch]
        assert sorted(begun + real(list(loader))) == read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"even": "drop"}, r"with even='drop': .* no later pass reads what it leaves out\. Use even='pad'"),
        ({"even": "sync"}, r"with even='sync': .* Use even='pad'"),
        ({"even": "sync", "batch_tokens": 64}, r"with even='sync': .* Leave out even \(use torch's Join"),
        ({"last_batch": "drop"}, r"with last_batch='drop': .* Use last_batch='pad', or leave out last_batch"),
        (
            {"pack": Pack(8, columns=["x"], method="wrap")},
            r"with Pack\(method='wrap'\): .* Use even='pad', or last_batch='pad'",
        ),
        ({"sharding": Rotate(4)}, r"with sharding=Rotate\(4\): .* Leave out sharding"),
        ({"sharding": {"kind": "rotate", "total_shards": 4}}, r"with sharding=Rotate\(4\)"),
    ],
)
def test_no_option_leaves_out_rows(table: Table, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"follow=True {message}"):
        open_table(table, **FOLLOW, **options)


def test_each_token_is_real_once(catalog: Catalog) -> None:
    schema = pa.schema({"tokens": pa.list_(pa.int64())})
    texts = catalog.create_table("ns.texts", schema=schema)
    loader, _ = open_table(
        texts, **FOLLOW, even="pad", batch_size=2, pack=Pack(8, columns=["tokens"], method="wrap"), count_rows=True
    )
    first = 0
    for sizes in ((), (4, 6, 9), (), (3,), (7, 20)):
        documents = [list(range(sum(sizes[:n]), sum(sizes[: n + 1]))) for n in range(len(sizes))]
        if documents:
            shifted = [[first + token for token in document] for document in documents]
            texts.append(pa.table({"tokens": shifted}, schema=schema))
        batches = list(loader)
        found = [token for batch in batches for token in batch["tokens"][batch["valid"]].tolist()]
        assert found == list(range(first, first + sum(sizes)))
        assert len(batches) == -(-sum(sizes) // 16)
        first += sum(sizes)


def test_remedies_are_not_refused(table: Table) -> None:
    with pytest.raises(
        CountsRequiredError, match=r"even='pad' needs counts .*batch_tokens .*\. Leave out even \(use .* Join"
    ):
        open_table(table, **FOLLOW, even="pad", batch_tokens=64)


@pytest.mark.parametrize("options", [{"even": "pad"}, {"last_batch": "wrap"}, {"canonical_ranks": 2}])
def test_missing_counts_are_an_error_before_there_are_rows(catalog: Catalog, options: dict[str, Any]) -> None:
    empty = catalog.create_table("ns.empty", schema=SCHEMA)
    with pytest.raises(CountsRequiredError, match="count_rows=True"):
        open_table(empty, **FOLLOW, **options, filters="id > 5")
    loader, _ = open_table(empty, **FOLLOW, **options, filters="id > 5", count_rows=True)
    assert list(loader) == []
    empty.append(rows(0, 10))
    assert sorted(set(ids_of(loader))) == [6, 7, 8, 9]


def test_the_length_is_that_of_a_pass_that_has_begun(table: Table) -> None:
    loader, _ = open_table(table, **FOLLOW)
    assert len(loader) == 13
    assert len(list(loader)) == 13
    with pytest.raises(TypeError, match="known once the next pass has begun: with follow=True"):
        len(loader)
    table.append(rows(100, 120))
    passing = iter(loader)
    next(passing)
    assert len(loader) == 3
    assert len(list(passing)) == 2


def test_uncounted_rows(catalog: Catalog) -> None:
    empty = catalog.create_table("ns.empty", schema=SCHEMA)
    loader, _ = open_table(empty, **FOLLOW, filters="id > 5", num_workers=2)
    assert list(loader) == []
    empty.append(rows(0, 10))
    assert ids_of(loader) == [6, 7, 8, 9]
    assert list(loader) == []
