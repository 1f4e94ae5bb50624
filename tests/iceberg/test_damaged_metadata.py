"""Metadata files with missing keys or wrong values, and compressed ones that expand without end."""

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.iceberg.conftest import sql_config
from tests.memory import peak_memory, restart_peak
from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError
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
