"""Metadata files with missing keys or wrong values, and compressed ones that expand without end."""

import copy
import gzip
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.iceberg.conftest import sql_config
from tests.memory import peak_memory, restart_peak
from torch_dataloader_utils.errors import CatalogError, DataLoaderUtilsError, FileReadError
from torch_dataloader_utils.iceberg.catalog import open_table
from torch_dataloader_utils.iceberg.plan import IcebergRead, plan_table

WRONG = [None, 3, -1, 2.5, "x", [], {}, [3], [None], True]


@pytest.fixture
def numbers(catalog: Catalog) -> Table:
    """A table of one row, with one snapshot."""
    table = catalog.create_table("ns.numbers", schema=pa.schema({"id": pa.int64()}))
    table.append(pa.table({"id": [1]}))
    return table


def places(value: Any) -> Iterator[list[Any]]:
    """The path of each value below this one."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        yield [key]
        yield from ([key, *path] for path in places(inner))


def changed(content: Any, path: list[Any], change: Callable[[Any, Any], None]) -> Any:
    """A copy of the content, with a change at one place."""
    content = copy.deepcopy(content)
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return content


@pytest.mark.filterwarnings("ignore:Encountered invalid snapshot summary")
@pytest.mark.parametrize("name", ["types_v3", "v1_table", "refs"])
def test_metadata_with_any_key_missing_or_wrong_is_read_or_named(
    spark_tables: Callable[[str], str], tmp_path: Path, name: str
) -> None:
    content = json.loads(Path(spark_tables(name)).read_text())
    content["snapshots"] = content["snapshots"][-1:]
    path = tmp_path / "v1.metadata.json"
    named, foreign = 0, []
    for number, place in enumerate(list(places(content))):
        wrong = WRONG[number % len(WRONG)]
        for change in (lambda holder, key: holder.pop(key), lambda holder, key, to=wrong: holder.__setitem__(key, to)):
            path.write_text(json.dumps(changed(content, place, change)))
            try:
                plan_table(str(path), IcebergRead())
            except DataLoaderUtilsError as error:
                named += str(path) in str(error)
            except Exception as error:  # noqa: BLE001 - all of them are listed
                foreign.append((place, wrong, repr(error)))
    assert not foreign
    assert named > 20


@pytest.mark.parametrize("key", ["location", "last-column-id", "schemas"])
def test_a_missing_key_is_named_with_the_file(numbers: Table, tmp_path: Path, key: str) -> None:
    content = json.loads(Path(numbers.metadata_location.removeprefix("file://")).read_text())
    del content[key]
    path = tmp_path / "v1.metadata.json"
    path.write_text(json.dumps(content))
    with pytest.raises(FileReadError, match=f"v1.metadata.json: is damaged.*{key}.*Read another metadata file"):
        open_table(path)


def test_a_field_in_place_of_a_type_is_named_with_the_file(numbers: Table, tmp_path: Path) -> None:
    content = json.loads(Path(numbers.metadata_location.removeprefix("file://")).read_text())
    (field,) = content["schemas"][0]["fields"]
    field["type"] = dict(field)  # pyiceberg raises NotImplementedError
    path = tmp_path / "v1.metadata.json"
    path.write_text(json.dumps(content))
    with pytest.raises(FileReadError, match=r"v1.metadata.json: is damaged.*Read another metadata file"):
        open_table(path)


def test_a_missing_key_of_a_table_in_a_catalog_is_named(numbers: Table, tmp_path: Path) -> None:
    path = Path(numbers.metadata_location.removeprefix("file://"))
    content = json.loads(path.read_text())
    del content["location"]
    path.write_text(json.dumps(content))
    with pytest.raises(FileReadError, match=r"table='ns.numbers': catalog .* damaged: .*location.*by the path"):
        open_table("ns.numbers", {"name": "test", **sql_config(tmp_path)})


def test_compressed_metadata_that_expands_without_end_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "v1.metadata.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as sink:
        for _ in range(600):
            sink.write(b" " * 2**20)
    before = restart_peak()
    with pytest.raises(FileReadError, match=r"v1.metadata.json.gz: is larger than 256 MiB \(decompressed\)"):
        open_table(path)
    assert peak_memory() - before < 560 * 2**20


def test_damaged_compression_of_metadata_is_named(numbers: Table, tmp_path: Path) -> None:
    data = gzip.compress(Path(numbers.metadata_location.removeprefix("file://")).read_bytes())
    path = tmp_path / "v1.metadata.json.gz"
    for damaged in (data[:100], data[:40] + bytes(40) + data[80:]):
        path.write_bytes(damaged)
        with pytest.raises(FileReadError, match=r"v1.metadata.json.gz: is not metadata"):
            open_table(path)


def test_metadata_of_a_catalog_that_expands_without_end_is_refused(numbers: Table, tmp_path: Path) -> None:
    path = tmp_path / "v9.gz.metadata.json"
    with gzip.open(path, "wb", compresslevel=1) as sink:
        for _ in range(300):
            sink.write(b" " * 2**20)
    _move_metadata(tmp_path, path)
    with pytest.raises(FileReadError, match=r"v9.gz.metadata.json: is larger than 256 MiB \(decompressed\)"):
        open_table("ns.numbers", {"name": "test", **sql_config(tmp_path)})


def test_compressed_metadata_of_a_catalog_is_read(numbers: Table, tmp_path: Path) -> None:
    path = tmp_path / "v9.gz.metadata.json"
    path.write_bytes(gzip.compress(Path(numbers.metadata_location.removeprefix("file://")).read_bytes()))
    _move_metadata(tmp_path, path)
    assert open_table("ns.numbers", {"name": "test", **sql_config(tmp_path)}).metadata == numbers.metadata


def test_no_class_that_a_table_s_metadata_names_is_imported(numbers: Table, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')")
    path = Path(numbers.metadata_location.removeprefix("file://"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"properties": {"py-io-impl": "planted.FileIO"}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        table = open_table("ns.numbers", {"name": "test", **sql_config(tmp_path)})
    assert table.metadata.properties["py-io-impl"] == "planted.FileIO"
    assert "planted" not in sys.modules


def test_a_class_that_the_catalog_s_own_configuration_names_reads_its_metadata(numbers: Table, tmp_path: Path) -> None:
    config = {"name": "test", **sql_config(tmp_path), "py-io-impl": "tests.iceberg.no_such_module.FileIO"}
    with pytest.raises(CatalogError, match=r"no_such_module"):
        open_table("ns.numbers", config)


def _move_metadata(folder: Path, path: Path) -> None:
    """Make it the current metadata file of the catalog's table."""
    with closing(sqlite3.connect(folder / "catalog.db")) as database, database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", [path.as_uri()])


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_metadata_that_is_nested_too_deeply_is_named(tmp_path: Path, opening: str) -> None:
    path = tmp_path / "v1.metadata.json"
    path.write_text(opening * 100_000)
    with pytest.raises(FileReadError, match=r"v1.metadata.json: .*nested too deeply"):
        open_table(path)


def test_a_name_mapping_that_is_not_json_is_named(numbers: Table, tmp_path: Path) -> None:
    content = json.loads(Path(numbers.metadata_location.removeprefix("file://")).read_text())
    content["properties"] = {"schema.name-mapping.default": "[" * 100_000}
    path = tmp_path / "v1.metadata.json"
    path.write_text(json.dumps(content))
    with pytest.raises(FileReadError, match=r"v1.metadata.json: .*'schema.name-mapping.default' is not JSON"):
        plan_table(str(path), IcebergRead())
