"""What one scan of the rows counts, and what the transforms learn of it; mergeable in any order, and picklable."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from hashlib import blake2b

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, EmptyDatasetError, OptionError
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.preprocess.columns import column_of, column_type, whole
from torch_dataloader_utils.preprocess.counted import not_updated
from torch_dataloader_utils.preprocess.learning import Learning
from torch_dataloader_utils.preprocess.remarks import lines_of
from torch_dataloader_utils.preprocess.scans import most_scans
from torch_dataloader_utils.preprocess.spec import without_places
from torch_dataloader_utils.printing import listed

_LOG = logging.getLogger("torch_dataloader_utils")


class FitScan:
    """One scan of the rows: counts what transforms learn from. Several, of parts of the rows, merge in any order.

    It pickles, with all values that it has counted: those in temporary files are read for that. One thread at a time
    adds to it: threads have a part each.

    Attributes:
        outputs: what each output has learned, and what is counted for it.
        rows: how many it has counted.
        is_part: whether it knows nothing of outputs that need no more scans, so that all is learned elsewhere.
        updates: which fit it updates, and how; "" if it begins a new one.
    """

    def __init__(self, outputs: Sequence[Learning], updates: str = "") -> None:
        self.outputs, self.is_part, self.updates = tuple(outputs), False, updates
        self.rows = 0
        for output in self.counting.values():
            output.begin()

    @property
    def counting(self) -> dict[int, Learning]:
        """The outputs for which it counts, by their places."""
        return {place: output for place, output in enumerate(self.outputs) if not output.done}

    @property
    def columns(self) -> list[str]:
        """The columns that it reads; `PLACE` among them, if folds are decided by rows' places."""
        return list(dict.fromkeys(name for output in self.counting.values() for name in output.output.fitted_columns))

    @property
    def counted_columns(self) -> list[str]:
        """Of its columns, those whose values are only counted, just as they are."""
        others = {
            name for each in self.counting.values() if not each.only_counts for name in each.output.fitted_columns
        }
        return [name for name in self.columns if name not in others]

    @property
    def mark(self) -> str:
        """A digest of what it counts: only scans of one mark merge."""
        state = blake2b(self.updates.encode(), digest_size=8)
        for output in self.counting.values():
            types = [column_type(type_).text for type_ in output.types]
            known = (output.output, types, output.learned, output.accuracy)
            state.update(repr(known).encode("utf-8", "surrogatepass"))
            state.update(b"" if output.refinement is None else output.refinement.ranges.astype("<u8").tobytes())
        return state.hexdigest()

    def part(self) -> FitScan:
        """A scan that has counted nothing, for a part of the rows, and knows only what it needs: small to send."""
        made = copy(self)
        made.rows, made.is_part = 0, True
        made.outputs = tuple(output.part() for output in self.counting.values())
        return made

    def recall(self) -> None:
        """Count the rows before an update, too: once, in one of the scans that are merged.

        Raises:
            OptionError: what was counted of them is not enough; or another rank knows it.
        """
        for output in self.counting.values():
            output.recall()
            if most_scans(output.output.chain, output.accuracy)[0] > 1 and (place := output.lacking) is not None:
                raise not_updated(output.output, place)

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Count rows, which have at least `columns`.

        Raises:
            ColumnNotFoundError: columns are missing; it names all of them.
            OptionError: folds are decided by rows' places, and these have none.
            UnsupportedTypeError: a column has values of another kind than the schema said, or some that have no id.
        """
        found = {name: column_of(rows, name) for name in self.columns}
        missing = [name for name, column in found.items() if column is None and name != PLACE]
        if missing:
            raise ColumnNotFoundError(
                f"these rows have no column {listed(map(repr, missing))}: the scan needs {list(found)}, and there "
                f"are {rows.schema.names}."
            )
        self.rows += rows.num_rows
        if not rows.num_rows:
            return
        if PLACE in found and found[PLACE] is None:
            raise without_places([output.output for output in self.counting.values()])
        columns = {name: whole(column) for name, column in found.items()}
        for output in self.counting.values():
            output.add([columns[name] for name in output.output.fitted_columns])

    def merge(self, other: FitScan) -> None:
        """Count what a scan of other rows has counted, too; that one stays as it is.

        Raises:
            OptionError: it counts something else: the spec, the schema or the number of the scan is another one.
        """
        if self.mark != other.mark:
            raise OptionError(
                "scans that count different things cannot be merged: make each by part() of one scan, or by scan() of "
                "one spec and schema; and finish() only the one in which all are merged."
            )
        self.rows += other.rows
        for own, others in zip(self.counting.values(), other.counting.values(), strict=True):
            own.merge(others)

    def finish(self) -> FitScan | None:
        """Let transforms learn; returns the scan that is needed next, or None.

        Raises:
            EmptyDatasetError: there are no rows.
            OptionError: an update needs the rows before it again.
        """
        if self.counting and not self.rows:
            raise EmptyDatasetError("fit: there are no rows to learn from.")
        for output in self.counting.values():
            output.finish()
        for output in self.counting.values() if self.updates else ():
            raise not_updated(output.output, len(output.learned))
        if self.counting:
            return FitScan(self.outputs)
        for line in lines_of(self.outputs):
            _LOG.warning("%s", line)
        return None

    def close(self) -> None:
        """Remove the temporary files, if there are some: nothing more can be learned then."""
        for output in self.outputs:
            output.close()
