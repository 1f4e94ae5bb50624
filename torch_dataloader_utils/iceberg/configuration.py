"""Catalogs by name: pyiceberg's own configuration, as its file and the environment have it now.

pyiceberg reads it once, when it is imported, and its errors print lines of the file, with their secrets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.utils.config import CATALOG, PYICEBERG_HOME, PYICEBERG_YML, Config, merge_config

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import listed
from torch_dataloader_utils.redaction import printable, remember_secrets

_VARIABLES = "the variables PYICEBERG_*"


@dataclass(frozen=True)
class Configuration:
    """pyiceberg's configuration.

    Attributes:
        catalogs: the properties of each catalog, by its name in lower case. May contain credentials.
        default: the name of the catalog that is meant without a name.
        files: those that exist: pyiceberg reads the first, and does not look into the others.
    """

    catalogs: Mapping[str, Mapping[str, Any]] = field(repr=False)
    default: str
    files: tuple[str, ...]

    def properties(self, name: str | None, given: Mapping[str, Any], table: str) -> tuple[str, dict[str, Any]]:
        """The name of a catalog, and its properties.

        Args:
            name: of the catalog; None for the default one.
            given: properties that take precedence over those of the configuration.
            table: the table that is looked for, for errors.

        Raises:
            OptionError: the configuration does not have the catalog, and none are given, or they do not describe one.
        """
        chosen = self.default if name is None else name
        known = self.catalogs.get(chosen.lower())
        if known is None and not given:
            raise OptionError(f"table={table!r} {self._unknown(name)}{self.in_table(table)}")
        merged: dict[str, Any] = merge_config(dict(known or {}), dict(given))
        remember_secrets(merged)
        if not any(merged.get(word) for word in ("uri", "type", "py-catalog-impl")):
            raise OptionError(
                f"table={table!r} of catalog {chosen!r}: its properties are {listed(sorted(merged), show=repr)}, of "
                f"{self._origin()}, but neither 'uri' nor 'type': give one of them."
            )
        return chosen, merged

    def in_table(self, table: str) -> str:
        """A sentence for errors if the name of a table begins with that of a catalog; "" if it does not."""
        first, _, rest = table.partition(".")
        if "." not in rest or first.lower() not in self.catalogs:
            return ""
        return f" {first!r} is a catalog of pyiceberg's configuration: name the table {rest!r}, with catalog={first!r}."

    def _unknown(self, name: str | None) -> str:
        """Which catalog is not known, and which are."""
        asked = (
            f"of catalog {name!r}"
            if name is not None
            else f"without a catalog, so of the default one, {self.default!r}"
        )
        known = f"the catalogs {listed(sorted(self.catalogs), show=repr)}" if self.catalogs else "no catalog"
        chosen = (name or self.default).lower()
        dashed = chosen.replace("_", "-")
        meant = ""
        if dashed in self.catalogs:
            meant = f" Did you mean {dashed!r}? In the names of variables, '_' stands for '-'."
        return (
            f"{asked}: pyiceberg's configuration does not have it. {self._origin()} have {known}.{meant} Give the name "
            "of one that is there, or properties such as {'type': 'rest', 'uri': ...}."
        )

    def _origin(self) -> str:
        """What was read, and what was not."""
        if not self.files:
            places = f"{PYICEBERG_HOME}, the home or the working directory"
            return f"{_VARIABLES} (there is no {PYICEBERG_YML} in {places})"
        first, *others = map(printable, self.files)
        hidden = f" (beside which {' and '.join(others)} {'is' if len(others) == 1 else 'are'} not read)"
        return f"{first}{hidden if others else ''} and {_VARIABLES}"


def check_configuration() -> None:
    """Check that pyiceberg can read its configuration.

    Raises:
        OptionError: it cannot.
    """
    _read(_files())


def configuration() -> Configuration:
    """The configuration of pyiceberg, read now.

    Raises:
        OptionError: pyiceberg cannot read it, or its catalogs are no groups of names and values.
    """
    files = _files()
    config = _read(files)
    catalogs = config.config.get(CATALOG, {})
    default = config.config.get("default-catalog") or "default"
    known = isinstance(catalogs, dict) and all(isinstance(one, dict) for one in catalogs.values())
    if not known or not isinstance(default, str):
        raise OptionError(
            f"{printable(files[0]) if files else _VARIABLES}: expected 'default-catalog' to be a name, and 'catalog' "
            "to hold a group of names and values for each catalog, such as catalog: prod: uri: https://host."
        )
    return Configuration(catalogs, default, files)


def _read(files: tuple[str, ...]) -> Config:
    try:
        return Config()
    except Exception as error:  # noqa: BLE001 - of the YAML parser, of the file's encoding, or of values that contradict each other
        raise OptionError(_unreadable(error, files)) from None


def _files() -> tuple[str, ...]:
    folders = [os.environ.get(PYICEBERG_HOME), os.path.expanduser("~"), os.getcwd()]
    files = [os.path.join(folder, PYICEBERG_YML) for folder in folders if folder]
    return tuple(dict.fromkeys(file for file in files if os.path.isfile(file)))


def _unreadable(error: Exception, files: tuple[str, ...]) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = "" if mark is None else f", line {mark.line + 1}"
    return (
        f"{printable(files[0]) if files else _VARIABLES}{line}: pyiceberg cannot read its configuration "
        f"({type(error).__name__}). Write it as plain YAML, one 'name: value' per line without braces, brackets, "
        "anchors or tags, and set no name in the variables PYICEBERG_* both to a value and to a group of names."
    )
