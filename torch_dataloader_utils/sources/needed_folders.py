"""Which folders named key=value a filter needs: they are listed level by level, and others are not looked into.

A store lists what lies below a folder in pages of a thousand names, however few of them a filter keeps. Wherever the
levels do not show what a whole listing would, the whole folder is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.filters.arrow import evaluate, filter_columns
from torch_dataloader_utils.filters.conditions import known_predicate
from torch_dataloader_utils.filters.facts import can_be_true, is_value
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.options import Hive, ReadOptions
from torch_dataloader_utils.sources.file_schema import folder_type
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.sources.partitions import keys_of_folder
from torch_dataloader_utils.storage import Storage, Stored

_MOST = 0.5  # of the folders of a level: if a filter keeps more, one listing of all is the faster one

Values = dict[str, str | None]


@dataclass
class NeededFolders:
    """The folders that filters need.

    Attributes:
        read: the filters, and how folders become columns.
        left_out: whether there were others.
    """

    read: ReadOptions
    left_out: bool = False
    _listed: dict[str, list[Stored]] = field(default_factory=dict)

    def files(self, storage: Storage, folder: str) -> list[Stored] | None:
        """The files below a folder that may have rows; None: any, because the filters rule no folder out.

        Args:
            storage: where they are.
            folder: the folder.
        """
        folders = self._below(storage, folder)
        if folders is not None:
            self.left_out = True
            found = read_footers(storage, storage.find, folders, work="listing folders")
            return [file for files in found for file in files]
        # A store's listing of a flat folder is the one that is needed anyway.
        flat = [] if storage.local else self._listed.get(folder, [])
        return None if any(each.folder for each in flat) else flat

    def _below(self, storage: Storage, folder: str) -> list[str] | None:
        """The folders below which there may be rows; None: any."""
        hive = self.read.partitioning
        whole = isinstance(hive, Hive) and hive.root is not None  # which folders count depends on each file
        if self.read.filters is None or hive is None or whole:
            return None
        try:
            return self._needed(storage, folder)
        except (DataLoaderUtilsError, pa.ArrowException):
            return None  # the whole listing tells what is wrong, if anything is

    def _needed(self, storage: Storage, folder: str) -> list[str] | None:
        kinds = pa.schema(self._keys(storage, folder))
        predicate = known_predicate(self.read.filters, kinds)
        named = filter_columns(predicate, kinds)
        if not named:
            return None
        keys = kinds.names[: kinds.get_field_index(named[-1]) + 1]
        kept: list[tuple[str, Values]] = [(folder, {})]
        for depth in range(1, len(keys) + 1):
            every = self._next(storage, kept)
            # A column has the type that all its values ask for, also those of folders that are left out.
            if every is None or not self._are(kinds, keys[:depth], every):
                return None
            columns = [_column([values[key] for _, values in every], kinds.field(key).type) for key in keys[:depth]]
            matching = _can_match(pa.table(columns, names=keys[:depth]), predicate, kinds)
            kept = [each for each, matches in zip(every, matching, strict=True) if matches]
            if not self._are(kinds, keys[:depth], kept):
                return None
        return None if len(kept) > _MOST * len(every or ()) else [path for path, _ in kept]

    def _next(self, storage: Storage, folders: Sequence[tuple[str, Values]]) -> list[tuple[str, Values]] | None:
        """The folders in these, with their values and those above; None where it does not show what they are."""
        of_each = read_footers(storage, lambda of: self._children(storage, of[0]), folders, work="listing folders")
        pairs = zip(folders, of_each, strict=True)
        if any(found is None for found in of_each):
            return None
        return [(path, above | own) for (_, above), found in pairs for path, own in found or ()]

    def _are(self, kinds: pa.Schema, keys: Sequence[str], folders: Sequence[tuple[str, Values]]) -> bool:
        """Whether there are such folders, whose columns have these keys and types."""
        values = [own for _, own in folders]
        same = bool(values) and all(list(own) == list(keys) for own in values)
        return same and self._types(values) == {key: kinds.field(key).type for key in keys}

    def _children(self, storage: Storage, folder: str) -> list[tuple[str, Values]] | None:
        """The folders in a folder, each with its value; None if they are not all of one key, or there are files."""
        if folder not in self._listed:
            self._listed[folder] = storage.children(folder)
        found = [(each, keys_of_folder(_name(each.path))) for each in self._listed[folder]]
        shown = [(each, values) for each, values in found if values or _name(each.path)[:1] not in "._"]
        of_tables = any(_name(each.path) in ("_delta_log", ".hoodie") for each, _ in found)
        plain = all(each.folder and not each.linked and len(values) == 1 for each, values in shown)
        if of_tables or not plain or len({key for _, values in shown for key in values}) != 1:
            return None
        return [(each.path, values) for each, values in shown]

    def _keys(self, storage: Storage, folder: str) -> dict[str, pa.DataType]:
        """The keys of the levels on the way to the first file, with the types that they have there."""
        keys: dict[str, pa.DataType] = {}
        while (found := self._children(storage, folder)) is not None:
            if found[0][1].keys() & keys:
                return {}  # the lower folder would count
            keys |= self._types([values for _, values in found])
            folder = found[0][0]
        return keys

    def _types(self, values: Sequence[Values]) -> dict[str, pa.DataType]:
        return {key: folder_type(key, [each[key] for each in values], self.read) for key in values[0]}


def _column(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    return pa.array(texts, pa.string()).cast(kind)


def _can_match(known: pa.Table, predicate: pc.Expression, kinds: pa.Schema) -> list[bool]:
    """Whether a row with these values can match a filter of more columns, of each row."""
    if set(filter_columns(predicate, kinds)) <= set(known.column_names):
        return [matches is True for matches in evaluate(known, predicate).to_pylist()]
    facts = ([is_value(pc.field(name), row[name], kinds.field(name).type) for name in row] for row in known.to_pylist())
    return [can_be_true(predicate, of_row, kinds) for of_row in facts]


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
