"""How pyiceberg's catalogs read metadata files: none too large, by no class that a table names."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, load_file_io

from torch_dataloader_utils.iceberg.metadata import MOST_BYTES, inflated


def with_limits(catalog: Catalog) -> Catalog:
    """The catalog, which reads metadata files through `LimitedIO`, or the class that its own configuration names.

    pyiceberg would also import any class that a table's metadata names, and call it.
    """
    catalog.properties.setdefault(PY_IO_IMPL, f"{LimitedIO.__module__}.{LimitedIO.__name__}")
    load = catalog._load_file_io

    def load_file_io_of(properties: Mapping[str, str] | None = None, location: str | None = None) -> FileIO:
        return load(_without_class(properties or {}), location)

    catalog._load_file_io = load_file_io_of
    return catalog


class LimitedIO(FileIO):  # type: ignore[misc]
    """Reads metadata files as pyiceberg does by default, none with a larger text than `inflated` permits."""

    def new_input(self, location: str) -> InputFile:
        """The file to read."""
        return _LimitedFile(self._files(location).new_input(location))

    def new_output(self, location: str) -> Any:
        """The file to write."""
        return self._files(location).new_output(location)

    def delete(self, location: Any) -> None:
        """Delete the file."""
        self._files(getattr(location, "location", location)).delete(location)

    def _files(self, location: str) -> FileIO:
        return load_file_io(_without_class(self.properties), location)


class _LimitedFile(InputFile):  # type: ignore[misc]
    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        found: bool = self._file.exists()
        return found

    def open(self, seekable: bool = True) -> Any:
        with self._file.open(seekable=seekable) as source:
            data = source.read(MOST_BYTES + 1)
        inflated(data, self.location)
        return BytesIO(data)


def _without_class(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key != PY_IO_IMPL}
