import multiprocessing
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import torch_dataloader_utils  # workers import this module: naming StructuredDataset here would cost them torch
from torch_dataloader_utils import OptionError, Processes, register_format
from torch_dataloader_utils.formats import registry
from torch_dataloader_utils.formats.base import BatchReader, Format
from torch_dataloader_utils.formats.sizes import counted_layout
from torch_dataloader_utils.model import DataFileInfo, FileLayout


class OneNumberReader(BatchReader):
    schema = pa.schema({"x": pa.int64()})

    def batches(self, numbers: list[int], columns: list[str]) -> list[pa.RecordBatch]:
        (number,) = struct.unpack("<4xq", self.source.read_at(12, 0))
        return [pa.record_batch({"x": pa.array([number * self.metadata])}) for _ in numbers]


class OneNumber(Format):
    name = "one number"
    options: Mapping[str, Any] = {"times": 1}
    reader = OneNumberReader

    def inspect(
        self, source: pa.NativeFile, file: DataFileInfo, options: Mapping[str, Any]
    ) -> tuple[FileLayout, pa.Schema]:
        schema = OneNumberReader.schema
        return counted_layout([(1, file.file_size)], schema, options["times"]), schema


class Another(OneNumber):
    pass


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "FORMATS", dict(registry.FORMATS))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.one"
    path.write_bytes(b"ONE1" + struct.pack("<q", 7))
    return path


def numbers(path: Path, **options: Any) -> list[int]:
    loader, _ = torch_dataloader_utils.StructuredDataset.create_dataloader(path, **options)
    return [number for batch in loader for number in batch["x"].tolist()]


def test_a_registered_format_is_found_by_name_by_suffix_and_by_first_bytes(file: Path) -> None:
    register_format(OneNumber(), suffixes=[".ONE"], magic=[b"ONE1"])
    bare = file.rename(file.with_suffix(""))
    assert numbers(bare) == numbers(bare, format="one number") == [7]
    assert numbers(bare.rename(file)) == [7]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_worker_processes_get_the_format_though_it_is_not_registered_there(file: Path, method: str) -> None:
    register_format(OneNumber(), suffixes=[".one"])
    workers = {"num_workers": 1, "worker_mode": Processes(context=method)}
    assert numbers(file, **workers) == [7]


def test_a_format_that_workers_cannot_import_is_an_error(file: Path) -> None:
    class Local(OneNumber):
        pass

    register_format(Local(), suffixes=[".one"])
    assert numbers(file, num_workers=1) == [7]
    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        numbers(file, num_workers=1, worker_mode=Processes(context="spawn"))


def test_a_format_without_suffixes_is_found_by_name_alone(file: Path) -> None:
    register_format(OneNumber())
    assert numbers(file, format="one number") == [7]
    with pytest.raises(OptionError, match=r"of no known format: .*f\.one.*one number"):
        numbers(file)


def test_a_registered_format_has_options_of_its_own(file: Path) -> None:
    register_format(OneNumber(), suffixes=[".one"])
    assert numbers(file, format_options={"times": 3}) == [21]
    with pytest.raises(OptionError, match="one number takes times"):
        numbers(file, format_options={"time": 3})
    with pytest.raises(OptionError, match="expected a int"):
        numbers(file, format_options={"times": "3"})


def test_the_same_class_may_be_registered_again_and_replaces_the_one_before(file: Path) -> None:
    register_format(OneNumber(), suffixes=[".no"])
    register_format(OneNumber(), suffixes=[".one"])
    assert numbers(file) == [7]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"the name 'one number' belongs to the format 'one number' \(.*OneNumber\)"),
        ({"name": "feather"}, r"the name 'feather' belongs to the format 'ipc'"),
        ({"name": "a", "suffixes": [".json", ".ONE"]}, r"the suffix '\.json' belongs to the format 'json'"),
        ({"name": "a", "suffixes": [".ONE"]}, r"the suffix '\.one' belongs to the format 'one number'"),
        ({"name": "a", "magic": [b"P"]}, r"the magic b'P' belongs to the format 'parquet'"),
        ({"name": "a", "magic": [b"ONE1.5"]}, r"the magic b'ONE1\.5' belongs to the format 'one number'"),
        ({"name": "a", "suffixes": ["toy"]}, r"suffix 'toy': expected one such as '\.toy'"),
        ({"name": "a", "suffixes": [".gz"]}, r"suffix '\.gz'"),
        ({"name": "a", "suffixes": [".a.b"]}, r"suffix '\.a\.b'"),
        ({"name": "a", "magic": [b""]}, r"magic b'': expected 1 to 32 bytes"),
        ({"name": "a", "magic": ["text"]}, r"magic 'text': expected 1 to 32 bytes"),
        ({"name": "a", "magic": [b"x" * 33]}, r"expected 1 to 32 bytes"),
        ({"name": ""}, r"expected an object of a subclass of Format, with a name"),
    ],
)
def test_what_another_format_has_cannot_be_registered(given: dict[str, Any], message: str) -> None:
    register_format(OneNumber(), suffixes=[".one"], magic=[b"ONE1"])
    other = Another()
    other.name = given.pop("name", other.name)
    before = dict(registry.FORMATS)
    with pytest.raises(OptionError, match=message):
        register_format(other, **given)
    assert before == registry.FORMATS


@pytest.mark.parametrize("value", [OneNumber, "parquet", None])
def test_only_objects_of_formats_can_be_registered(value: Any) -> None:
    with pytest.raises(OptionError, match="expected an object of a subclass of Format"):
        register_format(value)


def test_an_unknown_name_lists_the_known_ones_and_how_to_add_one(file: Path) -> None:
    register_format(OneNumber())
    with pytest.raises(
        OptionError, match=r"format='toy': expected one of 'parquet', .*'one number'; .*register_format"
    ):
        numbers(file, format="toy")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data.csv/part", None),
        ("a.b/x.CSV", "csv"),
        ("x.csv.GZ", "csv"),
        ("x.parquet.gz", None),
        ("https://host/x.parquet?versionId=1.csv", "parquet"),
        (".csv", None),
        ("..a.csv", "csv"),
        ("x.csv.", None),
        ("x.csv/", "csv"),
        ("x", None),
        ("", None),
    ],
)
def test_the_last_suffix_of_a_name_is_its_formats(path: str, name: str | None) -> None:
    assert registry.format_of(path) == name
