"""A Parquet footer with what plans need of it, so that thousands of files are planned without parsing one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.lazy import cached_property


@dataclass(frozen=True)
class Footer:
    """A footer, parsed when it is first used in a process; picklable.

    Attributes:
        file: a Parquet file that contains only this footer.
        nulls: number of a row group -> the columns that certainly contain a null in it; excludes row groups without
            such columns, and leaves below lists.
    """

    file: bytes = field(repr=False)
    nulls: Mapping[int, tuple[str, ...]]

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """The footer as parsed by pyarrow."""
        return pq.read_metadata(pa.BufferReader(self.file))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the parsed footer, which is many times larger; compression reduces these bytes to a quarter.
        return _inflated, (len(self.file), pa.compress(self.file, "zstd", asbytes=True), self.nulls)


def _inflated(size: int, data: bytes, nulls: Mapping[int, tuple[str, ...]]) -> Footer:
    return Footer(pa.decompress(data, size, "zstd", asbytes=True), nulls)
