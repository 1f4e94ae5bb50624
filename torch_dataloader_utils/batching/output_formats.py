"""The four output formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.batching.batches import BatchMaker, Part
from torch_dataloader_utils.batching.columns import ColumnForm, Jagged, numpy_cut, numpy_jagged
from torch_dataloader_utils.batching.devices import Target
from torch_dataloader_utils.batching.sent import SentForm
from torch_dataloader_utils.batching.tensors import TensorForm
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.schemas.columns import python_rows


def make_form(
    output_format: str,
    keys: Sequence[str],
    pin_memory: bool,
    jagged: Jagged | None = None,
    target: Target | None = None,
) -> BatchMaker:
    """The form for this output format. With a target, its batches are `Sent`.

    Args:
        output_format: its name.
        keys: of blocks, in order.
        pin_memory: whether tensors should be in page-locked memory.
        jagged: target keys of batches with the keys of the columns of lists that they join.
        target: where tensors are sent; None leaves them where they were read.
    """
    if output_format == "arrow":
        return ArrowForm(lambda batch: batch)
    if output_format == "dict":
        return ArrowForm(python_rows)
    if output_format == "numpy":
        return ColumnForm(keys, numpy_cut, jagged or {}, numpy_jagged)
    if target is not None:
        return SentForm(keys, jagged or {}, target)
    return TensorForm(keys, pin_memory, jagged or {})


def first_imports(
    output_format: str, report: Callable[[], Mapping[str, Mapping[str, Any]]], schema: pa.Schema
) -> tuple[str, ...]:
    """The modules that pyarrow imports when it first makes Python objects, or other batches than plain numbers.

    Args:
        output_format: its name.
        report: tells the kind of each key, as `Scan.report` does; not asked of plain numbers alone.
        schema: of the rows before they are converted.
    """
    kinds = {kind for each in set(schema.types) for kind in _all_types(each)}
    if output_format in ("torch", "numpy"):
        plain = all(pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind) for kind in kinds)
        objects = not plain and any(entry.get("kind") == "list" for entry in report().values())
    else:
        plain = False
        moments = any(pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_time(kind) for kind in kinds)
        objects = output_format == "dict" and moments
    of_objects = ["pandas", "pyarrow.pandas_compat", "pyarrow.vendored.version"]
    return (*["pyarrow.compute"] * (not plain), *of_objects * objects)


def _all_types(kind: pa.DataType) -> list[pa.DataType]:
    """The type and all within it."""
    within = [kind.field(number).type for number in range(kind.num_fields)]
    if pt.is_dictionary(kind):
        within.append(kind.value_type)
    elif isinstance(kind, pa.BaseExtensionType):
        within.append(kind.storage_type)
    return [kind, *(inner for one in within for inner in _all_types(one))]


class ArrowForm:
    """Batches as Arrow record batches, each mapped by a final function."""

    def __init__(self, last: Callable[[pa.RecordBatch], Any]) -> None:
        self._last = last

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        """`count` batches of `size` rows as slices of the block."""
        assert block.table is not None
        for number in range(count):
            yield self._last(block.table.slice(first + number * size, size))

    def join(self, parts: list[Part]) -> Any:
        """One batch from the rows of several blocks."""
        batches = [block.table.slice(first, last - first) for block, first, last in parts if block.table is not None]
        return self._last(pa.Table.from_batches(batches).combine_chunks().to_batches()[0])

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[Any]:
        """Batches with rows of every part, joined one by one."""
        ends = np.cumsum(quotas, axis=0).tolist()
        for quota, end in zip(quotas.tolist(), ends, strict=True):
            rows = zip(parts, quota, end, strict=True)
            yield self.join([(block, first + stop - n, first + stop) for (block, first, _), n, stop in rows if n])
