"""Which delete files apply to which data file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile
from torch_dataloader_utils.iceberg.manifests import Entry, content_of
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage.spelling import one_spelling

_PATH = 2147483546  # field id of the path column in positional delete files
PartitionKey: TypeAlias = tuple[int, Hashable]  # (spec id, partition values)


@dataclass(frozen=True)
class _Positions:
    """A positional delete file, and the ranges of paths it can name (in UTF-8, both ends included).

    One is of the ends as the manifest has them, the other of their one spelling.
    """

    file: DeleteFile
    first: bytes | None
    last: bytes | None
    plain: tuple[bytes | None, bytes | None]

    def may_name(self, path: bytes, plain: bytes) -> bool:
        return _between(self.first, path, self.last) or _between(self.plain[0], plain, self.plain[1])


def _between(first: bytes | None, path: bytes, last: bytes | None) -> bool:
    return (first is None or first <= path) and (last is None or path <= last)


def _plain(end: bytes | None) -> bytes | None:
    return (
        None if end is None else one_spelling(end.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    )


@dataclass
class DeleteIndex:
    """All delete files of a snapshot, grouped by the data files to which they can apply; by paths in one spelling."""

    vectors: dict[str, list[DeleteFile]] = field(default_factory=lambda: defaultdict(list))
    of_path: dict[str, list[DeleteFile]] = field(default_factory=lambda: defaultdict(list))
    positions: dict[PartitionKey, list[_Positions]] = field(default_factory=lambda: defaultdict(list))
    equality: dict[PartitionKey, list[DeleteFile]] = field(default_factory=lambda: defaultdict(list))
    everywhere: list[DeleteFile] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.vectors, self.of_path, self.positions, self.equality, self.everywhere))

    def of(self, path: str, sequence_number: int, place: PartitionKey) -> tuple[DeleteFile, ...]:
        """The deletes that apply to a data file: positional ones at least as new as it, equality ones newer than it.

        A vector contains all deleted positions, so it replaces positional delete files.
        """
        plain = one_spelling(path)
        vectors = [vector for vector in self.vectors.get(plain, ()) if vector.sequence_number >= sequence_number]
        positional = vectors or [*self.of_path.get(plain, ()), *self._positions_of(path, plain, place)]
        equality = [*self.everywhere, *self.equality.get(place, ())]
        return (
            *(delete for delete in positional if delete.sequence_number >= sequence_number),
            *(delete for delete in equality if delete.sequence_number > sequence_number),
        )

    def _positions_of(self, path: str, plain: str, place: PartitionKey) -> list[DeleteFile]:
        names = path.encode(), plain.encode()
        return [listed.file for listed in self.positions.get(place, ()) if listed.may_name(*names)]


def delete_index(
    entries: Iterable[Entry],
    place_of: Callable[[Entry], PartitionKey],
    unpartitioned: frozenset[int],
    path_of: Callable[[str], str],
) -> DeleteIndex:
    """The index of these delete files.

    Args:
        entries: the entries of delete manifests.
        place_of: returns the spec and the partition values of a file.
        unpartitioned: ids of specs without fields: their equality deletes apply to every file.
        path_of: converts a path as the table spells it to a path in the storage.
    """
    index = DeleteIndex()
    # In an order that does not depend on the manifests, because rewriting these changes theirs.
    for entry in sorted(entries, key=lambda one: (one.sequence_number, one.file.file_path)):
        delete = _delete_file(entry, path_of)
        if delete.kind == "vector":
            index.vectors[one_spelling(_referenced(entry.file))].append(delete)
        elif delete.kind == "equality":
            everywhere = entry.spec_id in unpartitioned
            (index.everywhere if everywhere else index.equality[place_of(entry)]).append(delete)
        else:
            _add_positions(index, entry, delete, place_of)
    return index


def _referenced(vector: DataFile) -> str:
    """The path of the data file whose rows a vector deletes.

    Raises:
        FileReadError: the manifest does not name it, so the deleted rows would come back.
    """
    path: str | None = content_of(vector, "referenced_data_file")
    if not path:
        raise FileReadError(
            f"{printable(vector.file_path)}: is listed as a deletion vector without 'referenced_data_file', the data "
            "file whose rows it deletes: the manifest is damaged. Read another snapshot."
        )
    return path


def _add_positions(
    index: DeleteIndex, entry: Entry, delete: DeleteFile, place_of: Callable[[Entry], PartitionKey]
) -> None:
    first, last = ((bounds or {}).get(_PATH) for bounds in (entry.file.lower_bounds, entry.file.upper_bounds))
    named = content_of(entry.file, "referenced_data_file")
    if named is not None:
        index.of_path[one_spelling(named)].append(delete)
    else:
        index.positions[place_of(entry)].append(_Positions(delete, first, last, (_plain(first), _plain(last))))


def manifest_size(file: DataFile) -> int:
    """A file's size in bytes according to its manifest, which is a hint; 0 if the manifest has none."""
    return max(file.file_size_in_bytes or 0, 0)


def _delete_file(entry: Entry, path_of: Callable[[str], str]) -> DeleteFile:
    file = entry.file
    kind = "positions"
    if file.content == DataFileContent.EQUALITY_DELETES:
        kind = "equality"
        if not file.equality_ids:
            raise FileReadError(
                f"{printable(file.file_path)}: is listed as a file of equality deletes without 'equality_ids', the "
                "columns that it compares: the manifest is damaged. Read another snapshot."
            )
    elif file.file_format == FileFormat.PUFFIN:
        kind = "vector"
    return DeleteFile(
        kind=kind,
        path=path_of(file.file_path),
        format=file.file_format.value.lower(),
        size=manifest_size(file),
        offset=content_of(file, "content_offset") or 0,
        length=content_of(file, "content_size_in_bytes") or 0,
        equality_ids=tuple(file.equality_ids or ()) if kind == "equality" else (),
        sequence_number=entry.sequence_number,
        record_count=file.record_count,
    )
