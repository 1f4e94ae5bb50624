"""Reads record batches out of Arrow IPC files and streams.

Messages are read into memory of our own, rather than mapped, and handed to pyarrow as a stream: no copy is made after
that, a file that is cut while it is read is an error and no crash, and files and streams are read in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.formats.decoding import Decoding
from torch_dataloader_utils.formats.ipc_arrays import buffer_starts, check, writable
from torch_dataloader_utils.formats.ipc_messages import BATCH, Index, Message, buffer_ranges
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage, prefetch

# Parts of a body that are no further apart (bytes) are read together.
_LOCAL_GAP, _REMOTE_GAP = 1 << 16, 1 << 20


class IpcReader:
    """An open file. Used by one thread at a time.

    Attributes:
        schema: the file's columns, as `read` gives them.
    """

    def __init__(self, file: DataFileInfo, index: Index, storage: Storage) -> None:
        self.path = file.path
        self.schema = index.arrow_schema()
        self._index = index
        self._gap = _LOCAL_GAP if storage.local else _REMOTE_GAP
        self._buffers = buffer_starts(self.schema)
        self._source = storage.open_data(file)
        self._prefixes: dict[int, bytes] = {}

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over these batches, with a chunk per batch."""
        numbers, names = list(segment_numbers), list(columns)
        with Decoding(self.path, f"record batches {', '.join(map(str, numbers))}, columns {', '.join(names)}"):
            fields = sorted({self.schema.get_field_index(name) for name in names})
            batches = [batch for run in self._runs(numbers) for batch in self._run(run, fields)] if fields else []
            kinds = [self.schema.field(name).type for name in names]
            return [pa.chunked_array([b[n] for b in batches], k) for n, k in zip(names, kinds, strict=True)]

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._source.close()

    def _runs(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """The batches, cut where a dictionary would have to be forgotten."""
        needed = self._index.needed
        cuts = [i for i in range(1, len(numbers)) if needed[numbers[i]] < needed[numbers[i - 1]]]
        for first, last in pairwise([0, *cuts, len(numbers)]):
            if first < last:
                yield list(numbers[first:last])

    def _run(self, numbers: list[int], fields: list[int]) -> list[pa.RecordBatch]:
        """These batches, with these fields: of their bodies, no more than that is read."""
        every = len(fields) == len(self.schema)
        prefix = self._prefix(self._index.needed[numbers[0]])
        messages = self._messages(numbers)
        # Arrow wants buffers at multiples of 64 bytes: those of the first batch are.
        content = _memory(len(prefix) + sum(message.size for message in messages), len(prefix) + messages[0].metadata)
        content[: len(prefix)] = np.frombuffer(prefix, np.uint8)
        if every:
            prefetch(self._source, [(message.offset, message.offset + message.size) for message in messages])
        ends = list(accumulate((message.size for message in messages), initial=len(prefix)))
        for message, (start, stop) in zip(messages, pairwise(ends), strict=True):
            if every or message.kind != BATCH:
                self._fill(content[start:stop], message.offset)
            else:
                self._fill_fields(content[start:stop], message, fields)
        batches = self._decoded(content, numbers, [] if every else fields)
        # The chunks of several batches are joined later, which is a copy anyway.
        return batches if len(batches) > 1 else [_owned(batches[0], content)]

    def _prefix(self, dictionaries: int) -> bytes:
        """What stands before a batch that needs so many dictionaries: the schema and these."""
        if dictionaries not in self._prefixes:
            messages = self._index.dictionaries[:dictionaries]
            parts = [self._bytes(message.offset, message.size) for message in messages]
            self._prefixes = {dictionaries: b"".join([self._index.schema, *parts])}
        return self._prefixes[dictionaries]

    def _messages(self, numbers: Sequence[int]) -> list[Message]:
        """The batches, and the dictionaries that are new between them."""
        index = self._index
        found, have = [], index.needed[numbers[0]]
        for number in numbers:
            found += [*index.dictionaries[have : index.needed[number]], index.batches[number]]
            have = index.needed[number]
        return found

    def _bytes(self, offset: int, size: int) -> bytes:
        content = np.empty(size, np.uint8)
        self._fill(content, offset)
        return content.tobytes()

    def _fill(self, content: npt.NDArray[np.uint8], offset: int) -> None:
        """Read as many bytes as there is room for."""
        self._source.seek(offset)
        found = self._source.readinto(content) if len(content) else 0
        if found < len(content):
            raise ValueError(f"it ends before byte {offset + len(content)}: it was cut since it was planned.")

    def _fill_fields(self, content: npt.NDArray[np.uint8], batch: Message, fields: Sequence[int]) -> None:
        """Read the metadata and, of the body, what these fields need; the rest stays what it was."""
        self._fill(content[: batch.metadata], batch.offset)
        buffers = buffer_ranges(content[: batch.metadata].tobytes())
        starts = self._buffers
        if starts is None or starts[-1] != len(buffers):
            wanted = [(0, batch.body)]
        else:
            wanted = [buffers[i] for field in fields for i in range(starts[field], starts[field + 1])]
        ranges = _coalesced(wanted, self._gap)
        if any(not 0 <= start <= stop <= batch.body for start, stop in ranges):
            raise ValueError(f"a buffer lies outside of its body of {batch.body} bytes.")
        body, offset = content[batch.metadata :], batch.offset + batch.metadata
        prefetch(self._source, [(offset + start, offset + stop) for start, stop in ranges])
        for start, stop in ranges:
            self._fill(body[start:stop], offset + start)

    def _decoded(
        self, content: npt.NDArray[np.uint8], numbers: Sequence[int], included: list[int]
    ) -> list[pa.RecordBatch]:
        """The batches in the memory that was read, checked: what is in a file must not crash the process."""
        options = pa.ipc.IpcReadOptions(included_fields=included, use_threads=False)
        with pa.ipc.open_stream(pa.py_buffer(content), options=options) as stream:
            batches = [stream.read_next_batch() for _ in numbers]
        for number, batch in zip(numbers, batches, strict=True):
            rows = self._index.batches[number].rows
            if batch.num_rows != rows:
                raise ValueError(f"record batch {number} has {batch.num_rows} rows, where {rows} were planned.")
            for column in batch.columns:
                check(column)
        return batches


def _memory(size: int, aligned: int) -> npt.NDArray[np.uint8]:
    """Fresh bytes, uint8 [size], of which number `aligned` lies at a multiple of 64."""
    lead = -aligned % 64
    return np.frombuffer(pa.allocate_buffer(size + lead), np.uint8)[lead:]


def _owned(batch: pa.RecordBatch, memory: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    """The batch, of arrays that may be written to."""
    address = memory.ctypes.data
    columns = [writable(column, memory, address) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _coalesced(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Half-open (start, stop) that cover all (offset, size), with no two closer than `gap`."""
    found: list[tuple[int, int]] = []
    for offset, size in sorted(ranges):
        if not size:
            continue
        if found and offset - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], offset + size))
        else:
            found.append((offset, offset + size))
    return found
