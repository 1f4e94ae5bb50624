"""Options: their values, where they come from, and what is said of bad ones."""

from __future__ import annotations

import io
import re
from dataclasses import Field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from PIL import Image

from torch_dataloader_utils.cli.app import app
from torch_dataloader_utils.cli.data import data_of
from torch_dataloader_utils.cli.declared import OWN_OPTIONS, completed, declared
from torch_dataloader_utils.cli.texts import plain, value_of
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.redaction import printable, remember_secrets


def option(name: str) -> Field:
    return declared()[name]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_ranks", "8", 8),
        ("num_workers", "null", None),
        ("shuffle", "true", True),
        ("shuffle", "splits", "splits"),
        ("columns", "id,x", ["id", "x"]),
        ("columns", '["a,b"]', ["a,b"]),
        ("format", "7", "7"),
        ("ref", "1.0", "1.0"),
        ("split_bytes", "32MiB", "32MiB"),
        ("split_bytes", "1000", 1000),
        ("filters", '[["id", ">", 3]]', [["id", ">", 3]]),
        ("filters", "id > 3 and city = 'Oslo'", "id > 3 and city = 'Oslo'"),
        ("sharding", "{kind: rotate, total_shards: 8}", {"kind": "rotate", "total_shards": 8}),
        ("dtypes", "{x: float32}", {"x": "float32"}),
        ("nulls", "mask", "mask"),
        ("lists", "{tags: {kind: padded, multiple: 8}}", {"tags": {"kind": "padded", "multiple": 8}}),
        ("nulls", "{age: no}", {"age": False}),  # as YAML has it: quote words such as "no"
        ("as_of", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("transform", "pathlib:Path", Path),
    ],
)
def test_text_becomes_the_value_that_is_declared(name, text, value):
    assert value_of(text, option(name)) == value


@pytest.mark.parametrize("text", ["none:such", "pathlib:NoSuch"])
def test_an_object_that_cannot_be_imported_is_named(text):
    with pytest.raises(OptionError, match=f"transform='{text}'"):
        value_of(text, option("transform"))


def test_a_broken_list_or_dict_is_an_error_without_its_text():
    with pytest.raises(OptionError, match="expected a list or dict") as error:
        plain("{secret: [hunter2", "--set")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        (["plan", "--shuffle", "data"], ["plan", "--shuffle", "true", "data"]),
        (["plan", "data", "--shuffle"], ["plan", "data", "--shuffle", "true"]),
        (["--shuffle", "splits", "data"], ["--shuffle", "splits", "data"]),
        (["--shuffle", "--count-rows", "false"], ["--shuffle", "true", "--count-rows", "false"]),
        (["--num-ranks", "3", "--", "--shuffle"], ["--num-ranks", "3", "--", "--shuffle"]),
    ],
)
def test_an_option_that_takes_true_may_stand_alone(given, becomes):
    assert completed(given) == becomes


def test_each_option_has_the_help_and_the_default_of_its_declaration(tdu):
    params = {param.name: param for param in typer.main.get_command(app).commands["plan"].params}
    for name in OWN_OPTIONS:
        assert params[name].help.lower() == f"{option(name).metadata['doc']}.".lower()
        default = option(name).default
        assert params[name].show_default == (False if default is None else str(default).lower())
    assert "--split-bytes" in tdu("plan", "--help")


def test_config_may_be_the_value_of_one_key(tdu):
    Path("config.yaml").write_text("loader:\n  path: data\n  nulls: mask\n  batch_size: 7\n")
    assert tdu.json("describe", "--config", "config.yaml")["batch_rows"] == 7


def test_what_a_config_has_no_more_is_said_as_lines_for_it(tdu):
    Path("config.yaml").write_text("path: data\nnulls: mask\nbatch_size: 7\nsubsets: {a: 1, b: 3}\nsubset: b\n")
    said = tdu.error("describe", "--config", "config.yaml").partition(" are now ")[2].splitlines()[0]
    assert said == 'subset: {"kind": "subset", "name": "b", "of": {"a": 1, "b": 3}}'
    Path("config.yaml").write_text(f"path: data\nnulls: mask\nbatch_size: 7\n{said}\n")
    assert tdu.json("describe", "--config", "config.yaml")["batch_rows"] == 7


def test_single_properties_are_added_to_those_of_the_config(tdu):
    Path("config.yaml").write_text("path: data\nstorage_options: {anon: true, region: a}\nnum_ranks: 3\n")
    empty = dict.fromkeys((*OWN_OPTIONS, "paths", "table", "delta", "catalog_config"))
    given = {**empty, "config": Path("config.yaml"), "set_": [], "catalog": [], "storage_option": ["region=b"]}
    assert data_of(given).keywords == {"storage_options": {"anon": True, "region": "b"}, "num_ranks": 3, "rank": 0}


SUBSET = """
path: data
nulls: mask
subset: {name: val, of: {train: 0.8, val: 0.2}, by: [id]}
count_rows: true
limit: 60
"""


def test_a_config_file_may_choose_a_subset(tdu):
    Path("config.yaml").write_text(SUBSET)
    described = tdu.json("describe", "--config", "config.yaml")
    assert described["rows"] == 60
    assert described["subset"] == "the first 60 rows of 'val' of {'train': 0.8, 'val': 0.2}, rows by 'id'"
    by_options = ("--set", "subset={name: train, of: {train: 0.8, val: 0.2}, by: [id, city]}")
    assert "rows by 'id', 'city'" in tdu.json("describe", "data", "--nulls", "mask", *by_options)["subset"]
    assert tdu.json("verify", "--config", "config.yaml", "--num-ranks", "3")["ok"]


def test_config_file_holds_path_and_keywords_which_options_replace(tdu):
    Path("loader.yaml").write_text(
        "_target_: torch_dataloader_utils.StructuredDataset.create_dataloader\n"
        "path: data\nnulls: mask\nbatch_size: 7\nfilters: [[id, '<', 100]]\n"
    )
    assert tdu.json("describe", "--config", "loader.yaml")["batch_rows"] == 7
    assert tdu.json("describe", "--config", "loader.yaml", "--batch-size", "9")["batch_rows"] == 9
    assert tdu.json("describe", "--config", "loader.yaml")["rows_unfiltered"] == 100


SOURCES = (
    "path: data",
    "source: data",
    "source: [data]",
    "_target_: torch_dataloader_utils.stream\nsource: data",
    "source: {kind: files, path: data, partitioning: null, format: parquet}",
    "source: {_target_: torch_dataloader_utils.Files, path: data, partitioning: hive}",
)


@pytest.mark.parametrize("source", SOURCES)
def test_a_config_file_names_its_source(tdu, source):
    Path("config.yaml").write_text(f"{source}\nnulls: mask\nbatch_size: 7\n")
    described = tdu.json("describe", "--config", "config.yaml")
    assert described["batch_rows"] == 7
    assert described["rows"] == tdu.json("describe", "data", "--nulls", "mask")["rows"]


def test_a_source_may_be_all_of_a_config_and_options_replace_its_fields(tdu):
    Path("config.yaml").write_text("source: {kind: files, path: data, format: csv}\n")
    assert "csv" in tdu.error("describe", "--config", "config.yaml", "--nulls", "mask")
    assert tdu.json("describe", "--config", "config.yaml", "--nulls", "mask", "--format", "parquet")["rows"]
    Path("other").symlink_to("data")
    shown = tdu.json("describe", "other", "--config", "config.yaml", "--nulls", "mask", "--format", "parquet")
    assert shown["rows"]


def test_a_value_may_be_set_as_a_dict(tdu):
    pq.write_table(pa.table({"ids": [[1, 2], [3], [4]]}), "documents.parquet")
    shown = tdu.json("describe", "documents.parquet", "--set", 'pack={"length": 2048}')
    assert "2,048" in str(shown["packing"]) or "2048" in str(shown["packing"])
    assert "Pack has no field 'lenght'" in tdu.error("describe", "documents.parquet", "--set", 'pack={"lenght": 2048}')


IMAGES = """
path: images.parquet
transform:
  - {_target_: torch_dataloader_utils.transforms.DecodeImages, column: image, size: 8}
"""


def test_a_config_file_may_hold_a_transform_of_this_package(tdu):
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    pq.write_table(pa.table({"image": [picture.getvalue()] * 3}), "images.parquet")
    Path("config.yaml").write_text(IMAGES)
    (key,) = tdu.json("describe", "--config", "config.yaml")["keys"]
    assert (key["key"], key["dtype"], key["shape"]) == ("image", "uint8", "[B, 3, 8, 8]")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("_target_: torch_dataloader_utils.combine\ndatasets: [data, data]", "a combination, which no command reads"),
        (
            "path: data\ntransform: {_target_: torch_dataloader_utils.transforms.DecodeImages, colum: image}",
            "transform: DecodeImages: ",
        ),
        ("source: 3", "source=3: expected a path or a list of paths"),
        ("source: {kind: file, path: data}", "kind='file': expected 'files'"),
        ("source: data\npath: data", "no path or table"),
        ("source: {_target_: os.system, command: ls}", "source: _target_='os.system': a command builds only"),
        ("path: data\ntransform: {_target_: os.system, command: ls}", "transform: _target_='os.system': a command"),
        (
            "path: data\ncollate_fn: {_target_: torch_dataloader_utils.transforms.x}",
            "a command builds only ChatTemplate, ColumnDropout",
        ),
    ],
)
def test_a_command_builds_nothing_else(tdu, config, said):
    Path("config.yaml").write_text(config)
    assert said in tdu.error("plan", "--config", "config.yaml", "--num-ranks", "2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "nowhere"), "nowhere: there is no such file or folder"),
        (("plan", "data", "--nulls", "mask", "--num-ranks", "x"), "num_ranks='x': expected a whole number"),
        (("plan", "data", "--set", "bach_size=3"), "did you mean 'batch_size'"),
        (("plan", "data", "--set", "drop_last=true"), "use last_batch='drop'"),
        (("plan", "data", "--set", "batch_size=3", "--batch-size", "4"), "both given"),
        (("plan", "data", "--set", "batch_size"), "--set, number 1: expected key=value"),
        (("plan", "data", "--table", "a.b"), "expected one of PATH"),
        (("plan", "--num-ranks", "2"), "expected one of PATH"),
        (("plan", "data", "--rank", "2", "--num-ranks", "2"), "rank=2 with num_ranks=2"),
        (("bench", "data"), "column 'age' has a null"),
        (("plan", "data", "--config", "none.yaml"), "none.yaml: No such file"),
        (("head", "data", "--set", "transform=doctored:fails"), "of the user"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(tdu, arguments, said):
    error = tdu.error(*arguments)
    assert said in error
    assert "Traceback" not in error


def test_bad_usage_is_exit_code_2_and_names_close_options(tdu):
    assert "--num-ranks" in tdu.error("plan", "data", "--num-rank", "2")
    assert "No such command" in tdu.error("plam")


def test_a_config_file_that_is_none_is_not_shown(tdu):
    Path("bad.yaml").write_text("storage_options: {secret: hunter2\n")
    error = tdu.error("plan", "--config", "bad.yaml")
    assert re.search(r"bad\.yaml, line \d: it is not YAML or JSON", error)
    assert "hunter2" not in error
    Path("bad.yaml").write_text("- hunter2\n")
    assert "expected keywords" in tdu.error("plan", "--config", "bad.yaml")


def test_properties_are_given_once_and_a_text_is_none(tdu):
    assert "storage_options" in (error := tdu.error("plan", "data", "--set", "storage_options=hunter2"))
    assert "TypeError" not in error
    both = ("--set", "storage_options={a: 1}", "--storage-option", "b=2")
    assert "storage_options was given by --set and by its own option" in tdu.error("plan", "data", *both)


def test_debug_shows_the_traceback(tdu):
    assert "Traceback" in tdu.error("plan", "nowhere", "--debug")


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_secrets_are_never_printed(tdu, debug):
    url = "http://user:hunter2@127.0.0.1:9/a.parquet?signature=hunter3"
    error = tdu.error("schema", url, "--storage-option", "password=hunter4", *debug)
    assert "127.0.0.1" in error
    nested = "storage_options={password: hunter6, client_kwargs: {token: hunter7}}"
    error += tdu.error("schema", url, "--set", nested, *debug)
    table = ("--table", "a.b", "--catalog", "type=rest", "--catalog", "uri=http://127.0.0.1:9")
    error += tdu.error("schema", *table, "--catalog", "credential=me:hunter5", *debug)
    assert "hunter" not in error


@pytest.mark.parametrize("name", ["connection_string", "header.Authorization", "pwd"])
def test_credentials_are_known_by_the_names_that_stores_and_catalogs_give_them(name):
    remember_secrets({name: "AccountKey=hunter2"})
    assert printable("refused: hunter2, AccountKey=hunter2") in ("refused: ***, ***", "refused: ***, AccountKey=***")
