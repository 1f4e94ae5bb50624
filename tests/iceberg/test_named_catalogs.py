"""Catalogs by name, as pyiceberg's files and environment have them now; as properties; as objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.iceberg.conftest import sql_config
from tests.iceberg.services import vending
from torch_dataloader_utils import DataNotFoundError, Iceberg, IcebergDataset, OptionError, stream
from torch_dataloader_utils.iceberg.configuration import configuration
from torch_dataloader_utils.plan_page.call import source_values

FILE = ".pyiceberg.yaml"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a configuration, from another working directory without one."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYICEBERG_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def prod(tmp_path: Path, home: Path) -> dict[str, str]:
    """The properties of the catalog "prod", with a table "db.t" of the ids 1 and 2."""
    config = sql_config(tmp_path)
    with SqlCatalog("prod", **config) as made:
        made.create_namespace("db")
        made.create_table("db.t", schema=pa.schema({"id": pa.int64()})).append(pa.table({"id": [1, 2]}))
    return config


def written(folder: Path, **catalogs: dict[str, str]) -> Path:
    """A configuration with these catalogs."""
    lines = [
        f"  {name}:\n" + "".join(f"    {key}: {value}\n" for key, value in properties.items())
        for name, properties in catalogs.items()
    ]
    (folder / FILE).write_text("catalog:\n" + "".join(lines))
    return folder / FILE


def set_variables(monkeypatch: pytest.MonkeyPatch, name: str, properties: dict[str, str]) -> None:
    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{name}__{key.upper()}", value)


def ids(source: Iceberg) -> list[int]:
    return [row for batch in stream(source) for row in batch["id"].tolist()]


def error_of(call: Callable[[], Any], kind: type[Exception] = OptionError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# ------------------------------------------------------------------------------------------------- what has the name


@pytest.mark.parametrize("place", ["PYICEBERG_HOME", "home", "work"])
def test_a_name_is_found_in_each_file(
    prod: dict[str, str], home: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all of them, although pyiceberg was imported long before."""
    folder = {"PYICEBERG_HOME": tmp_path, "home": home, "work": tmp_path / "work"}[place]
    if place == "PYICEBERG_HOME":
        monkeypatch.setenv("PYICEBERG_HOME", str(folder))
    written(folder, prod=prod)
    assert ids(Iceberg("db.t", catalog="prod")) == [1, 2]
    loader, _ = IcebergDataset.create_dataloader("db.t", catalog_config="prod")
    assert [batch["id"].tolist() for batch in loader] == [[1, 2]]


def test_variables_take_precedence_and_are_read_when_they_are_needed(
    prod: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home, prod={**prod, "uri": "sqlite:////nowhere/catalog.db"})
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", prod["uri"])
    assert ids(Iceberg("db.t", catalog="prod")) == [1, 2]
    set_variables(monkeypatch, "ONLY_THERE", {**prod, "type": "sql"})
    with pytest.raises(DataNotFoundError, match="catalog 'only-there' has no such"):  # a SQL catalog has its own tables
        ids(Iceberg("db.t", catalog="only-there"))


def test_a_rest_catalog_is_found_by_its_name(catalog: Catalog, home: Path) -> None:
    table = catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()}))
    table.append(pa.table({"id": [7]}))
    with vending(table, lambda load: {}) as service:
        written(home, far=dict(service.config))
        assert ids(Iceberg("ns.t", catalog="far")) == [7]


def test_a_dict_may_add_to_what_has_the_name(prod: dict[str, str], home: Path) -> None:
    written(home, prod={"type": "sql"})
    assert ids(Iceberg("db.t", catalog={"name": "prod", "uri": prod["uri"]})) == [1, 2]
    assert ids(Iceberg("db.t", catalog={"name": "prod", **prod})) == [1, 2]


def test_without_a_name_the_default_one_is_meant(
    prod: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home, prod=prod)
    monkeypatch.setenv("PYICEBERG_DEFAULT_CATALOG", "prod")
    assert ids(Iceberg("db.t")) == [1, 2]


def test_an_object_is_asked_itself(prod: dict[str, str]) -> None:
    with SqlCatalog("prod", **prod) as made:
        source = Iceberg("db.t", catalog=made)
        loader = stream(source)
        assert [batch["id"].tolist() for batch in loader] == [[1, 2]]
        made.load_table("db.t").append(pa.table({"id": [3]}))
        assert loader.advance()
        assert ids(source) == [1, 2, 3]
        assert "SqlCatalog" not in repr(source)


def test_a_name_is_shown_and_saved_and_nothing_else_is(prod: dict[str, str], home: Path) -> None:
    named = Iceberg("db.t", catalog="prod")
    assert repr(named) == "Iceberg('db.t', catalog='prod')"
    assert Iceberg.from_dict(named.to_dict()) == named
    assert repr(Iceberg("db.t", catalog={"name": "prod", "token": "t0ken"})) == "Iceberg('db.t')"
    (field,) = source_values(named)["fields"]
    assert (field["name"], field["python"]) == ("catalog", '"prod"')
    (field,) = source_values(Iceberg("db.t", catalog=prod))["fields"]
    assert "not shown here" in field["hidden"]


# ------------------------------------------------------------------------------------------------------------- errors


def test_an_unknown_name_is_told_what_there_is(
    prod: dict[str, str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = Iceberg("db.t", catalog="prdo")
    message = error_of(lambda: ids(unknown))
    assert message.startswith("table='db.t' of catalog 'prdo': pyiceberg's configuration does not have it.")
    assert f"PYICEBERG_* (there is no {FILE} in PYICEBERG_HOME, the home or the working directory) have no c" in message
    assert "--uri" not in message
    read, hidden = written(home, prod=prod, test=prod), written(tmp_path / "work", prdo=prod)
    set_variables(monkeypatch, "MORE", prod)
    message = error_of(lambda: ids(unknown))
    assert f"{read} (beside which {hidden} is not read) and the variables PYICEBERG_* have" in message
    assert "have the catalogs 'more', 'prod', 'test'." in message
    assert "Did you mean" not in message
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    written(tmp_path, other=prod)
    assert f"(beside which {read} and {hidden} are not read)" in error_of(lambda: ids(unknown))


def test_a_name_with_the_underscore_of_its_variables_is_told_the_one_with_a_dash(
    prod: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqlCatalog("my-prod", **prod) as made:
        made.create_namespace("mine")
        made.create_table("mine.t", schema=pa.schema({"id": pa.int64()}))
    set_variables(monkeypatch, "MY_PROD", prod)
    message = error_of(lambda: ids(Iceberg("mine.t", catalog="my_prod")))
    assert "Did you mean 'my-prod'? In the names of variables, '_' stands for '-'." in message
    assert ids(Iceberg("mine.t", catalog="my-prod")) == []  # as it says
    monkeypatch.setenv("PYICEBERG_DEFAULT_CATALOG", "my_prod")
    assert "Did you mean 'my-prod'?" in error_of(lambda: ids(Iceberg("mine.t")))


def test_a_catalog_in_the_name_of_a_table_is_told_where_it_belongs(prod: dict[str, str], home: Path) -> None:
    """As Spark and SQL name tables: without a catalog, with this one, and with another."""
    written(home, prod=prod, other=prod)
    advice = "'prod' is a catalog of pyiceberg's configuration: name the table 'db.t', with catalog='prod'."
    assert advice in error_of(lambda: ids(Iceberg("prod.db.t")))
    for catalog in ("prod", "other"):
        assert advice in error_of(lambda catalog=catalog: ids(Iceberg("prod.db.t", catalog=catalog)), DataNotFoundError)
    assert advice not in error_of(lambda: ids(Iceberg("db.absent", catalog="prod")), DataNotFoundError)


def test_a_catalog_without_its_address_is_told_so(prod: dict[str, str], home: Path) -> None:
    file = written(home, prod={"warehouse": "w", "token": "SECRETtoken12345"})
    message = error_of(lambda: ids(Iceberg("db.t", catalog="prod")))
    assert f"its properties are 'token', 'warehouse', of {file} and the variables" in message
    assert "neither 'uri' nor 'type'" in message
    assert "SECRET" not in message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("catalog:\n  prod: {type: rest, token: SECRETtoken12345}\n", ", line 2"),
        ("catalog:\n  prod:\n    token: SECRETtoken12345\n    token: SECRETtoken12345\n", ", line 4"),
        ("catalog:\n  prod:\n  - [SECRETtoken12345\n", ", line 3"),
        ("", ""),
    ],
)
def test_a_file_that_becomes_unreadable_is_named_with_the_line_and_without_its_text(
    home: Path, text: str, line: str
) -> None:
    (home / FILE).write_text(text)
    message = error_of(lambda: ids(Iceberg("db.t", catalog="prod")))
    assert message.startswith(f"{home}/{FILE}{line}: pyiceberg cannot read its configuration")
    assert "SECRET" not in message


@pytest.mark.parametrize("text", ["catalog: SECRETtoken12345\n", "catalog:\n  prod: SECRETtoken12345\n"])
def test_a_file_of_another_form_is_told_which_is_expected(home: Path, text: str) -> None:
    (home / FILE).write_text(text)
    message = error_of(configuration)
    assert message.startswith(f"{home}/{FILE}: expected")
    assert "SECRET" not in message
