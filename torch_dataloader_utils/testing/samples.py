"""Tables and files for checking formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import pyarrow as pa

from torch_dataloader_utils.formats.base import Format, Reader
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage

Write: TypeAlias = Callable[[pa.Table, Path], None]

_SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [0, -1, 2**63 - 1, -(2**63), 7],
    pa.int8(): [0, 127, -128, 1, 2],
    pa.float64(): [0.0, 1.5, -2.25, 1e300, 5e-324],
    pa.float32(): [0.0, 1.5, -2.25],
    pa.bool_(): [True, False, True],
    pa.string(): ["", "a", 'some "quoted", text', "\u00fc\u4f60\U0001f600"],
    pa.list_(pa.int32()): [[], [1], [1, 2, 3]],
    pa.struct({"x": pa.int32()}): [{"x": 1}, {"x": -2}],
}
_SAMPLE_ROWS = 60


def sample_tables(types: Sequence[pa.DataType] | None = None) -> list[pa.Table]:
    """Tables to write, with columns "a", "b", ... of these types: of 60 rows with and without nulls, and of one row.

    Some values are at the limits of their types.

    Args:
        types: some of int64, int8, float64, float32, bool, string, list of int32, and struct with an int32 "x"; by
            default all of these.
    """
    kinds = list(_SAMPLES) if types is None else list(types)
    unknown = [str(kind) for kind in kinds if kind not in _SAMPLES]
    if unknown or not kinds:
        raise ValueError(f"types {unknown}: expected some of {', '.join(map(str, _SAMPLES))}; else write tables=.")

    def table(rows: int, *nulls: None) -> pa.Table:
        arrays = (pa.array(([*_SAMPLES[kind], *nulls] * rows)[:rows], kind) for kind in kinds)
        return pa.table(dict(zip(ascii_lowercase, arrays, strict=False)))

    return [table(_SAMPLE_ROWS), table(_SAMPLE_ROWS, None), table(1)]


@dataclass(frozen=True)
class WrittenFile:
    """A file of a table, and how it is read."""

    format: Format
    path: Path
    table: pa.Table
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def info(self) -> DataFileInfo:
        """The file as it is now."""
        return DataFileInfo(str(self.path), self.path.stat().st_size)

    @cached_property
    def laid_out(self) -> tuple[FileLayout, pa.Schema]:
        """What `Format.layout` returned the first time."""
        return self.format.layout(self.info, Storage(), self.options)

    @property
    def numbers(self) -> list[int]:
        """Of all segments."""
        return [segment.number for segment in self.laid_out[0].segments]

    @property
    def wanted(self) -> pa.Schema:
        """The schema that a scan asks for: of files that do not say their types, those of the table."""
        return self.laid_out[1] if self.format.typed else self.table.schema

    @contextmanager
    def opened(self, layout: FileLayout | None = None, wanted: pa.Schema | None = None) -> Iterator[Reader]:
        """A reader, closed at the end; of another layout, or for other columns."""
        layout = self.laid_out[0] if layout is None else layout
        reader = self.format.open(self.info, layout, Storage(), self.options, self.wanted if wanted is None else wanted)
        try:
            yield reader
        finally:
            reader.close()

    def read_all(self) -> list[list[Any]]:
        """All that can be done to a file at once: the values of each column."""
        with self.opened() as reader:
            return [column.to_pylist() for column in reader.read(self.numbers, self.table.column_names)]


@contextmanager
def written(
    format: Format,
    write: Write,
    table: pa.Table,
    options: Mapping[str, Any] | None,
    suffix: str,
) -> Iterator[WrittenFile]:
    """A file of this table, removed at the end."""
    with TemporaryDirectory(prefix="check-format-") as folder:
        path = Path(folder) / f"data{suffix}"
        write(table, path)
        if not path.is_file():
            raise AssertionError(f"write(table, path) made no file at {path}.")
        yield WrittenFile(format, path, table, options or {})
