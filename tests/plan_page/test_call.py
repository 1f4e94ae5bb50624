"""The call on the plan page makes the dataset that is shown: in Python, and as YAML from a config file."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hydra.utils
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pyiceberg.catalog import load_catalog

from torch_dataloader_utils import (
    Appended,
    Codes,
    DeltaDataset,
    Files,
    Fill,
    Follow,
    Hive,
    IcebergDataset,
    Pack,
    Padded,
    StructuredDataset,
    Subsets,
    combine,
    stream,
)
from torch_dataloader_utils.cli.texts import config_of
from torch_dataloader_utils.plan_page.call import combination_values, written

RANKS = {"num_ranks": 1, "rank": 0}
ODD = 'it\'s "0"\\\n\t\x7f\u2028\U0001f4a9 #'
Texts = Callable[[Any], tuple[str, str]]
CATALOG = "fill in the catalog's properties; not shown here, because they may hold credentials"


@pytest.fixture
def texts(browser: Any, tmp_path: Path) -> Texts:
    """The Python and the YAML on the page of a dataset."""

    def shown(dataset: Any) -> tuple[str, str]:
        page = browser.new_page()
        page.goto(f"file://{dataset.plan_page(tmp_path / 'plan.html')}")
        page.wait_for_function("PlanPage.drawn > 0")
        both = page.inner_text("#python"), page.inner_text("#yaml")
        page.close()
        return both

    return shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 rows with labels of each type."""
    path = tmp_path_factory.mktemp("labels")
    table = pa.table(
        {
            "id": range(20),
            "label": [0, 1] * 10,
            "flag": [True, False] * 10,
            "name": ["0", "yes", "null", "a"] * 5,
            "tokens": [[1, 2], [3]] * 10,
        }
    )
    pq.write_table(table, path / "part.parquet")
    return path


def by_python(text: str, **scope: Any) -> Any:
    scope |= {"rank": 0}
    exec(text, scope)
    return scope.get("dataset") or scope["loader"].dataset


def by_config(text: str, tmp_path: Path) -> Any:
    """The dataset of a config file, as the command line reads it."""
    (tmp_path / "loader.yaml").write_text(text, encoding="utf-8")
    config = config_of(tmp_path / "loader.yaml")
    assert config.pop("_target_") == "torch_dataloader_utils.stream"
    return stream(**{"rank": 0, **config}).dataset


CALLS: list[dict[str, Any]] = [
    {"columns": ["id", "label"], "class_weights": {"label": {0: 0.5, 1: 3}}},
    {"columns": ["id", "name"], "class_weights": {"name": {"0": 0.5, "yes": 1e-07, "null": 3, ODD: 2}}},
    {"columns": ["id"], "filters": [["id", "in", [2**60, 3]], ["id", "<", math.inf], ["id", ">", -1e22]]},
    {"columns": ["id"], "subset": Subsets({"train": 0.9, "val": 1e-05}, by="id")["train"]},
    {"columns": ["tokens"], "pack": Pack(4, columns=["tokens"], pad={"tokens": -100})},
    {"columns": ["tokens"], "pack": Pack(4, columns=["tokens"], method="wrap"), "count_rows": True},
    {"columns": ["id", "name"], "nulls": {"*": "drop", "i*": "mask", "id": Fill(-1)}},
    {"columns": ["id"], "nulls": Fill({"id": -1, "int64": 0})},
    {"columns": ["id", "name"], "strings": Codes({"name": ["a", ODD]}, unknown=-1), "nulls": Fill("a")},
    {"columns": ["id", "name"], "strings": {"name": Codes([ODD], unknown=7), "id": "codes"}, "nulls": {"*": "mask"}},
    {"columns": ["id"], "even": "none"},
    {"columns": ["tokens", "id"], "lists": {"tokens": Padded(-100, multiple=8)}},
    {"columns": ["tokens"], "lists": Padded(multiple=8)},
    {"columns": ["tokens", "id"], "lists": "padded", "batch_tokens": 16, "timeout": 1.5, "prefetch_bytes": "1KiB"},
]  # fmt: skip


@pytest.mark.parametrize("options", CALLS, ids=lambda options: list(options)[1])
def test_both_texts_make_the_dataset_that_is_shown(
    folder: Path, texts: Texts, tmp_path: Path, options: dict[str, Any]
) -> None:
    _, dataset = StructuredDataset.create_dataloader(str(folder), **RANKS, **options)
    python, text = texts(dataset)
    assert by_python(python)._options == dataset._options
    assert by_config(text, tmp_path)._options == dataset._options
    assert hydra.utils.instantiate(OmegaConf.create(text), rank=0).dataset._options == dataset._options


@pytest.mark.parametrize(
    "options",
    [
        {"partitioning": Hive("{folder}", schema={"day": "string"}), "format": "parquet"},
        {"partitioning": None, "manifest": "{folder}.manifest"},
        {"partitioning": "hive"},
    ],
    ids=len,
)
def test_what_only_files_have_is_written_in_their_value(texts: Texts, tmp_path: Path, options: dict[str, Any]) -> None:
    folder = tmp_path / "a folder" / "day=1"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), folder / "x.parquet")
    filled = {name: _in(value, folder.parent) for name, value in options.items()}
    dataset = stream(Files(folder, **filled), batch_size=7, **RANKS).dataset
    python, text = texts(dataset)
    assert by_python(python)._options == by_config(text, tmp_path)._options == dataset._options
    assert hydra.utils.instantiate(OmegaConf.create(text), rank=0).dataset._options == dataset._options
    assert texts(pickle.loads(pickle.dumps(dataset))) == (python, text)


def _in(value: Any, folder: Path) -> Any:
    """The value with this folder filled in."""
    if isinstance(value, Hive):
        return value.replace(root=None if value.root is None else _in(value.root, folder))
    return value.format(folder=folder) if isinstance(value, str) else value


def test_a_schema_is_left_to_the_users_code(folder: Path, texts: Texts) -> None:
    schema = pa.schema({"id": pa.int32()})
    dataset = stream(Files(folder, schema=schema), **RANKS).dataset
    python, text = texts(dataset)
    assert "        schema=schema,  # as in your code\n" in python
    assert by_python(python, schema=schema)._options == dataset._options
    assert "  # schema: set schema in your code\n" in text


def test_a_long_vocabulary_is_not_shown(folder: Path, texts: Texts) -> None:
    """The page would be larger than what it shows."""
    words = [f"word {number}" for number in range(10_000)]
    _, dataset = StructuredDataset.create_dataloader(
        str(folder), columns=["name"], strings=Codes(words, unknown=-1), nulls="mask", **RANKS
    )
    python, text = texts(dataset)
    assert "word 1" not in python + text
    assert "too long" in python


def test_labels_that_are_bools_and_null_stay_what_they_are(folder: Path, texts: Texts, tmp_path: Path) -> None:
    """From YAML as the command line reads it: OmegaConf has no null among its keys."""
    weights = {"flag": {True: 2.0, False: 0.25, None: 1.0}}
    _, dataset = StructuredDataset.create_dataloader(
        str(folder), columns=["id", "flag"], class_weights=weights, **RANKS
    )
    python, text = texts(dataset)
    assert by_python(python)._options == by_config(text, tmp_path)._options == dataset._options  # False == 0
    assert 'class_weights={"flag": {None: 1, False: 0.25, True: 2}}' in python  # in one order, whatever was given
    assert 'class_weights: {"flag": {null: 1, false: 0.25, true: 2}}' in text


def test_a_mix_is_written_with_its_members(folder: Path, texts: Texts) -> None:
    inner = combine({"a": str(folder), "b": str(folder)}, **RANKS).dataset
    phases = [(0, {"both": 1, "one": 1}), (10, {"both": 1, "one": 3})]
    dataset = combine({"both": inner, "one": str(folder)}, weights=phases, rows_per_epoch=30, **RANKS).dataset
    again = by_python(texts(dataset)[0], dataset_0=inner)
    assert again._options == dataset._options
    assert again._source.group == dataset._source.group


def test_a_combination_of_one_dataset_is_no_call_of_another_name(folder: Path, texts: Texts) -> None:
    dataset = combine([str(folder)], source_key="part", **RANKS).dataset
    assert by_python(texts(dataset)[0])._options == dataset._options


def test_the_parts_of_a_combination_and_their_defaults_are_written(folder: Path, texts: Texts) -> None:
    parts: dict[str, Any] = {
        "a": {"source": str(folder), "filters": [["id", "<", 8]], "count_rows": True},
        "b": Files([str(folder / "part.parquet")], format="parquet"),
    }
    defaults: dict[str, Any] = {"columns": ["id", "name"], "strings": "codes", "nulls": {"id": Fill(-1)}}
    loader = combine(parts, batch_size=4, **defaults, **RANKS)
    python, text = texts(pickle.loads(pickle.dumps(loader.dataset)))
    made = [by_python(python), hydra.utils.instantiate({"rank": 0, **yaml.safe_load(text)}).dataset]
    for dataset in made:
        assert dataset._options == loader.dataset._options
        assert dataset.vocabularies() == loader.vocabularies()
        assert [batch["id"].tolist() for batch in dataset] == [batch["id"].tolist() for batch in loader]


def test_a_part_whose_text_would_show_a_credential_is_a_variable(folder: Path) -> None:
    secret: Any = {"source": str(folder), "storage_options": {"key": "hunter2hunter2"}}
    call = combination_values({"a": secret, "b": "s3://user:hunter2hunter2@host/x", "c": {"source": "x"}}, {})
    assert call["target"] == {"name": "datasets", "python": '{"a": dataset_0, "b": dataset_1, "c": {"source": "x"}}'}


# --------------------------------------------------------------------------------------------------------------- tables


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of two versions, of 3 and of 6 rows."""
    place = str(tmp_path_factory.mktemp("delta"))
    for start in (0, 3):
        write_deltalake(place, pa.table({"id": range(start, start + 3)}), mode="append")
    return place


@pytest.mark.parametrize("options", [{"version": 0}, {"as_of": datetime(2100, 1, 1, tzinfo=UTC)}, {}], ids=list)
def test_a_delta_table_is_written_with_its_version(
    delta: str, texts: Texts, tmp_path: Path, options: dict[str, Any]
) -> None:
    _, dataset = DeltaDataset.create_dataloader(delta, **options, **RANKS)
    python, text = texts(dataset)
    assert by_python(python).version == by_config(text, tmp_path).version == dataset.version
    assert [name in text for name in ("version", "as_of")] == [name in options for name in ("version", "as_of")]
    assert ("# the newest when this page was written: snapshot 1" in python) == (not options)


def test_an_opened_delta_table_is_written_with_the_version_that_it_has(
    delta: str, texts: Texts, tmp_path: Path
) -> None:
    _, dataset = DeltaDataset.create_dataloader(DeltaTable(delta, version=0), **RANKS)
    python, text = texts(dataset)
    assert by_python(python).version == by_config(text, tmp_path).version == 0


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], list[int]]]:
    """A catalog with a secret among its properties, and the ids of the snapshots of its table `db.events`."""
    place = tmp_path_factory.mktemp("iceberg")
    config = {"type": "sql", "uri": f"sqlite:///{place}/c.db", "warehouse": str(place), "token": "SECRET-1"}
    opened = load_catalog("default", **config)
    opened.create_namespace("db")
    rows = pa.table({"id": range(20)})
    table = opened.create_table("db.events", schema=rows.schema)
    for _ in range(3):
        table.append(rows)
    yield config, [snapshot.snapshot_id for snapshot in table.snapshots()]
    opened.close()


@pytest.mark.parametrize(
    "options",
    [
        lambda ids: {"snapshot_id": ids[1]},
        lambda ids: {"appended": Appended(ids[0], until=ids[1], replay=0.5, non_appends="ignore")},
        lambda ids: {"ref": "main", "metadata_columns": ["_pos"], "scan_filter": [["id", "<", 7]]},
        lambda ids: {"follow": Follow(wait=0)},
    ],
    ids=["snapshot_id", "appended", "ref", "follow"],
)
def test_an_iceberg_table_is_written_with_its_options(
    catalog: tuple[dict[str, str], list[int]], texts: Texts, tmp_path: Path, options: Callable[[list[int]], Any]
) -> None:
    config, snapshots = catalog
    given = options(snapshots)
    _, dataset = IcebergDataset.create_dataloader("db.events", catalog_config=config, **given, **RANKS)
    python, text = texts(dataset)
    filled = text.replace(f"  # catalog: {CATALOG}", f"  catalog: {config}")
    again = by_python(python, catalog=config), by_config(filled, tmp_path)
    for other in again:
        assert other._options == dataset._options
        assert other._saved_cursor() == dataset._saved_cursor()
        assert other._table.options == dataset._table.options
    assert "SECRET" not in (tmp_path / "plan.html").read_text()
    assert "sqlite" not in (tmp_path / "plan.html").read_text()
    assert f"        catalog=catalog,  # {CATALOG}\n" in python
    assert f"  # catalog: {CATALOG}\n" in text


def test_a_copy_in_another_process_writes_the_same_call(catalog: Any, texts: Texts) -> None:
    config, snapshots = catalog
    _, dataset = IcebergDataset.create_dataloader("db.events", catalog_config=config, snapshot_id=snapshots[0], **RANKS)
    data = pickle.dumps(dataset)
    assert b"SECRET" not in data
    assert texts(pickle.loads(data)) == texts(dataset)


def test_an_opened_iceberg_table_needs_its_catalog(catalog: Any, texts: Texts) -> None:
    config, snapshots = catalog
    opened = load_catalog("default", **config)
    _, dataset = IcebergDataset.create_dataloader(opened.load_table("db.events"), **RANKS)
    opened.close()
    python, _ = texts(dataset)
    assert f"# the newest when this page was written: snapshot {snapshots[-1]}\n" in python
    assert by_python(python, catalog=config)._saved_cursor() == dataset._saved_cursor()


# ------------------------------------------------------------------------------------------------------------- literals

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(alphabet=st.characters())
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.none() | st.booleans() | st.integers() | st.text(), inner),
)


@given(value=PLAIN | st.just(ODD))
def test_literals_mean_their_value(value: Any) -> None:
    texts = written(value)
    assert texts is not None
    assert repr(eval(texts["python"])) == repr(value)  # repr: 1 is no True
    assert repr(yaml.safe_load(texts["yaml"])) == repr(value)


def test_literals_of_python_keep_tuples_and_of_yaml_are_lists() -> None:
    assert written([("a", "<", 1), (), (2,)]) == {
        "python": '[("a", "<", 1), (), (2,)]',
        "yaml": '[["a", "<", 1], [], [2]]',
    }


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, [len], datetime(2026, 1, 1, tzinfo=UTC)], ids=str)
def test_what_is_no_plain_value_has_no_literal(value: Any) -> None:
    assert written(value) is None
