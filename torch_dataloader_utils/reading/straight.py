"""Columns of numbers that are decoded straight to where they are delivered, without an array of Arrow between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Dense
from torch_dataloader_utils.convert.converter import Converter
from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.kernels.pages import Straight, deliver, delivers
from torch_dataloader_utils.reading.blocks import noting
from torch_dataloader_utils.reading.buffers import BufferPool, Scratch
from torch_dataloader_utils.reading.runs import RunReader, SegmentRun


class StraightReader:
    """Reads such columns; one per thread or process, because it has scratch memory.

    Args:
        converter: converts all columns.
        runs: opens the files.
        pool: memory of the columns.
    """

    def __init__(self, converter: Converter, runs: RunReader, pool: BufferPool) -> None:
        self._runs, self._pool = runs, pool
        self._keys, self._forms = converter.dense, converter.straight
        self._scratch = Scratch()

    def columns(
        self,
        runs: Sequence[SegmentRun],
        wanted: Sequence[pa.Field],
        rows: int,
        places: npt.NDArray[np.uint32] | None = None,
    ) -> dict[str, Dense]:
        """Those of the columns that can be read so, by name: all rows of these runs.

        Args:
            runs: in order.
            wanted: the columns.
            rows: how many rows the runs have, as planned.
            places: uint32 [delivered], which of the rows is delivered first, second, ...; None: as they are.
        """
        named = [item for item in wanted if item.name in self._forms]
        if not named or not delivers():
            return {}
        recorder().enter("decode")
        found: dict[str, Straight] = {}
        with noting(lambda: self._runs.where(runs), DataLoaderUtilsError), self._runs.unchanged(runs):
            chunks = self._runs.chunks(runs, named)
            if not chunks or int(next(iter(chunks.values()))["rows"].sum()) != rows:  # of the same row groups
                return {}
            size, forms = rows if places is None else len(places), [self._forms[name] for name in chunks]
            outs = self._pool.leases([size * dtype.itemsize for dtype, _ in forms])
            for (name, own), out, (dtype, blank) in zip(chunks.items(), outs, forms, strict=True):
                found[name] = Straight(own, out.view(dtype), blank)
            widest = 0 if places is None else max(column.out.itemsize for column in found.values())
            whole = deliver(list(found.values()), self._scratch.bytes(rows * widest), places)
        done = {name: column for (name, column), each in zip(found.items(), whole, strict=True) if each}
        lengths = [column.chunks["length"] for column in done.values()]
        recorder().count("bytes_decoded", int(np.concatenate(lengths).sum()) if lengths else 0)
        return {name: Dense(column.out) for name, column in done.items()}

    def key(self, name: str) -> str:
        """The key of a column that was read so."""
        return self._keys[name]
