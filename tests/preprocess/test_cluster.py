"""A fit that ranks share: the digest of one machine, and an error on one rank ends all."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.distributed.launching import run_ranks
from tests.preprocess.cluster_jobs import GRID, GROWING, NEW, OLD, PLACED, fitted, learned
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.preprocess import Preprocess
from torch_dataloader_utils.preprocess.grid import Grid

JOBS = Path(__file__).with_name("cluster_jobs.py")
ROWS = 6000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of very different sizes, one of them empty: of three ranks, one has no rows."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(300)])
    table = pa.table(
        {
            "x": rng.normal(size=ROWS),
            "y": pa.array(rng.exponential(size=ROWS), mask=rng.random(ROWS) < 0.1),
            "few": pa.array(rng.integers(0, 9, ROWS), mask=rng.random(ROWS) < 0.2),
            "text": pa.array(words[rng.zipf(1.5, ROWS) % 300], mask=rng.random(ROWS) < 0.3),
            "id": rng.integers(0, 3000, ROWS),
            "tags": [list(map(str, rng.integers(0, 20, number % 4))) for number in range(ROWS)],
            "label": rng.integers(0, 2, ROWS),
        }
    )
    folder = tmp_path_factory.mktemp("data")
    for name, (first, last) in {"a": (0, 5990), "b": (5990, 5990), "c": (5990, ROWS)}.items():
        pq.write_table(table.slice(first, last - first), folder / f"{name}.parquet")
    return folder


def ran(scenario: str, data: Path, out: Path, ranks: int) -> list[dict[str, Any]]:
    return run_ranks(JOBS, [scenario, str(data), str(out)], out, ranks)


@pytest.mark.parametrize("ranks", [*(pytest.param(few, marks=pytest.mark.nightly) for few in (1, 2)), 3])
def test_ranks_find_what_one_machine_finds(data: Path, tmp_path: Path, ranks: int) -> None:
    alone, filtered = fitted(str(data)), fitted(str(data), filters=[("label", "==", 1)])
    exact = fitted(str(data), quantiles="exact")
    others = {"filtered": filtered, "placed": fitted(str(data), PLACED), "exact": exact}
    assert alone["digest"] not in (filtered["digest"], exact["digest"])
    assert set(exact["errors"].values()) == {0.0} != set(alone["errors"].values())
    assert alone["said"][0].endswith("2 scans")
    for found in ran("same", data, tmp_path, ranks):
        for way, each in found.items():
            want = others.get(way, alone)
            assert {**each, "said": 0} == {**want, "said": 0}, way
            assert each["said"][0].endswith({"placed": "1 scan", "exact": "3 scans"}.get(way, "2 scans"))


@pytest.mark.slow
def test_all_processes_of_a_mesh_share_the_scans(data: Path, tmp_path: Path) -> None:
    alone = fitted(str(data))
    for found in ran("mesh", data, tmp_path, 4):
        assert {**found, "said": 0} == {**alone, "said": 0}


def test_rows_in_memory_of_named_ranks_are_parts(data: Path, tmp_path: Path) -> None:
    alone = fitted(str(data))
    for found in ran("parts", data, tmp_path, 3):
        assert {**found["parts"], "said": 0} == {**alone, "said": 0}


def test_one_rank_may_fit_alone(data: Path, tmp_path: Path) -> None:
    assert ran("alone", data, tmp_path, 2)[0]["digest"] == fitted(str(data))["digest"]


def test_an_error_on_one_rank_ends_all(data: Path, tmp_path: Path) -> None:
    first, second = ran("errors", data, tmp_path, 2)
    assert second["column"]["error"].startswith("ColumnNotFoundError")
    assert first["column"]["error"].startswith("WorkerError: another rank failed while fitting: rank 1: ColumnNotFound")
    assert "rank 1: " in first["file"]["error"]
    assert "rank 1: " not in second["file"]["error"]
    for rank in (first, second):
        assert rank["spec"]["error"].startswith("PlanMismatchError: ranks fit different things")
        assert rank["data"]["error"].startswith("PlanMismatchError: ranks fit different things")
    for when in ("while scanning", "while swapping"):
        assert second[when]["error"] == "OSError: the disk is gone"
        assert (
            first[when]["error"] == "WorkerError: another rank failed while fitting: rank 1: OSError: the disk is gone"
        )
    for rank in (first, second):
        assert all(found["seconds"] < 60 for name, found in rank.items() if name != "well")
        assert rank["well"]["digest"] == fitted(str(data))["digest"]


@pytest.mark.parametrize("ranks", [2, *(pytest.param(count, marks=pytest.mark.nightly) for count in (1, 3))])
def test_ranks_grow_as_one_machine_does(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr(Grid, "limit", GRID)
    path = str(data)
    first = Preprocess(GROWING).fit(path, filters=OLD, quantiles=1)
    expected = {"first": learned(first)}
    in_steps = [copy.copy(first) for _ in range(3)]
    for prep, how in zip(in_steps, (True, "ids", "only ids"), strict=True):
        if how == "only ids":
            prep.fit(path, filters=NEW, update="ids", quantiles=1)
        else:
            prep.fit(path, filters=[*NEW, ("id", "<", 2000)], update=how, quantiles=1)  # type: ignore[arg-type]
            prep.fit(path, filters=[("id", ">=", 2000)], update=True, quantiles=1)
    expected |= dict(zip(("in two steps", "ids first", "ids"), map(learned, in_steps), strict=True))
    at_once = learned(first.fit(path, filters=NEW, update=True, quantiles=1))
    expected |= dict.fromkeys(("in memory", "from files", "parts", "rounds", "well"), at_once)
    assert at_once["numbers"] == learned(Preprocess(GROWING).fit(path, quantiles=1))["numbers"]
    for rank, found in enumerate(ran("grown", data, tmp_path, ranks)):
        for way, want in expected.items():
            assert found[way] == json.loads(json.dumps(want)), way
        if rank:
            assert found["alone"]["error"].startswith("OptionError: fit(update=...): output")
            assert "the first of them holds the counts of rare values" in found["alone"]["error"]
        else:
            assert found["alone"] == found["well"]
        if ranks > 1:
            assert "saved with state=False" in found["one without"]["error"]
            assert "ranks fit different things" in found["one is another"]["error"]
        saved = Preprocess.load(tmp_path / f"prep-{rank}.json")
        if rank:
            with pytest.raises(OptionError, match="the rank that saved it had a part of it"):
                saved.fit(path, update=True, quantiles=1)
        else:
            assert saved.fit(path, update=True, quantiles=1).generation == 2


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named(data: Path, tmp_path: Path) -> None:
    (found, _) = ran("missing", data, tmp_path, 2)
    assert found["error"].startswith("PlanMismatchError: process(es) 1 did not put together what they counted within")
    assert found["seconds"] < 60
