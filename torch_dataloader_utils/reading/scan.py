"""From a task to a block: read column by column, conform, narrow, filter, transform, convert once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.convert.converter import Converter
from torch_dataloader_utils.formats.sizes import fixed_width
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile, FileKey
from torch_dataloader_utils.options.sources import SHARES
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.reading.blocks import BlockReader, Stage
from torch_dataloader_utils.reading.buffers import BufferPool
from torch_dataloader_utils.reading.chosen import RowCopies, RowMask
from torch_dataloader_utils.reading.draws import DRAW, Draws
from torch_dataloader_utils.reading.failures import Skipping
from torch_dataloader_utils.reading.files import FileOpener
from torch_dataloader_utils.reading.places import PLACE_FIELD, FileKeys, placed
from torch_dataloader_utils.reading.task_reader import TaskReader
from torch_dataloader_utils.reading.transforms import marks_before, marks_of, prepare, reads_place
from torch_dataloader_utils.schemas.columns import find_path, top_level
from torch_dataloader_utils.storage import Storage


@dataclass(frozen=True)
class ScanSpec:
    """What all tasks of a dataset share; picklable, because worker processes receive it.

    Attributes:
        opener: opens the files.
        storage: where the files are.
        format_options: options of the format.
        schema: resolved types of the top-level columns to read, including partition columns.
        partition_names: the columns whose values are in the paths.
        predicate: the filter, or None.
        decided: whether all rows of the files pass it, so that it need not be applied.
        predicate_columns: the columns that it and `chosen` use.
        given: the schema that the transform and the converter receive (`parent.child` for a field of a struct).
        transform: a function of a record batch, and of a generator if it draws; or None.
        transform_rows: whether it keeps the number of rows ("same") or not ("any").
        output_schema: schema of the rows that are converted.
        converter: converts them.
        valid_key: key of the mask of real rows, or None if no plan repeats rows.
        encoded: columns of `schema` that are read as dictionaries, although the files hold plain strings or bytes.
        arrow: whether the output stays Arrow.
        chosen: chooses rows by their values; None for all.
        copies: how many copies rows get; None: one of each.
        stage: makes other rows of those of a task, such as sequences of documents; None: these are delivered.
        names: the columns of `given` that name rows.
        keys: of the files, if the column `PLACE` is read beside those that are asked for.
        skipping: what becomes of rows for which the transform fails; None: they are errors.
        draws: by what the transform draws numbers; None if it draws none.
        source: the dataset of a combination that the rows are of: its name, or its number; None: they are of none.
        pool: memory that rows are shuffled into.
    """

    opener: FileOpener
    storage: Storage
    format_options: Mapping[str, Any]
    schema: pa.Schema
    partition_names: frozenset[str]
    predicate: pc.Expression | None
    predicate_columns: tuple[str, ...]
    given: pa.Schema
    transform: Callable[..., pa.RecordBatch] | None
    transform_rows: str
    output_schema: pa.Schema
    converter: Converter
    arrow: bool
    valid_key: str | None = None
    encoded: frozenset[str] = frozenset()
    decided: bool = False
    chosen: RowMask | None = field(default=None, compare=False)
    copies: RowCopies | None = field(default=None, compare=False)
    stage: Stage | None = None
    names: tuple[str, ...] = ()
    keys: FileKeys | None = field(default=None, repr=False, compare=False)
    skipping: Skipping | None = None
    draws: Draws | None = None
    source: str | int | None = None
    pool: BufferPool = field(default_factory=BufferPool, repr=False, compare=False)

    @property
    def local(self) -> bool:
        """Whether the files are on this machine."""
        return self.storage.local

    @property
    def storages(self) -> tuple[Storage, ...]:
        """Where the files are."""
        return (self.storage,)

    def with_places(self, keys: FileKeys | None = None) -> ScanSpec:
        """The scan that also reads the places of rows, by the names of files, or else their paths."""
        if self.keys is not None:
            return self
        keys = FileKeys() if keys is None else keys
        schema, given = (each.append(PLACE_FIELD) for each in (self.schema, self.given))
        return replace(self, opener=placed(self.opener, keys), schema=schema, given=given, keys=keys)

    def planned(self, splits: int, *, by_number: bool, seed: int | None = None) -> ScanSpec:
        """The scan of rows that are planned.

        Args:
            splits: the number of all splits.
            by_number: whether rows are delivered by number, so that those for which the transform fails keep their
                places.
            seed: of draws; None: as before.
        """
        draws, skipping = self.draws, self.skipping
        if draws is not None:
            draws = replace(draws, splits=max(splits, 1), seed=draws.seed if seed is None else seed)
        if skipping is not None:
            skipping = replace(skipping, keeps=by_number)
        return replace(self, draws=draws, skipping=skipping)

    @property
    def hidden(self) -> tuple[str, ...]:
        """The columns that are read, or made of those, but not given to the transform."""
        return (DRAW,) if reads_place(self.transform) else (PLACE, DRAW)

    @property
    def selects_rows(self) -> bool:
        """Whether rows that are read may be left out, or copied."""
        return self.copies is not None or self._omits_rows

    @property
    def _omits_rows(self) -> bool:
        filtered = self.predicate is not None and not self.decided
        return filtered or self.chosen is not None or bool(self.converter.drop_columns)

    @property
    def decisive(self) -> frozenset[str]:
        """The columns of `schema` on which it depends whether a row is left out, and how often it is copied if not.

        Empty, if no row is left out.
        """
        if not self._omits_rows:
            return frozenset()
        paths = (find_path(self.given, name) for name in self.converter.drop_columns)
        dropped = (top_level(self.schema, path[0]) for path in paths if path is not None)
        return frozenset([*self.predicate_columns, *dropped])

    @property
    def made_bytes(self) -> int:
        """Bytes that the transform makes of a row, in columns of a fixed width; 0 if rows are not transformed alone."""
        if self.transform is None or self.transform_rows != "same" or self.stage is not None:
            return 0
        return sum(fixed_width(item.type) or 0 for item in self.output_schema)

    @property
    def columns_stand_alone(self) -> bool:
        """Whether each column can be converted without the others; those of a stack are joined afterwards."""
        shaped = self.selects_rows or self.transform is not None or self.arrow
        return not shaped and SHARES not in self.schema.names and bool(self.given.equals(self.schema))

    @property
    def mark(self) -> str:
        """What states and ranks compare of the transform."""
        return marks_of(self.transform)

    @property
    def marks_before(self) -> Sequence[str]:
        """The marks that its parts had before they grew."""
        return marks_before(self.transform)

    @property
    def jagged(self) -> Mapping[str, Sequence[str]]:
        """See `Converter.jagged`."""
        return self.converter.jagged

    def report(self) -> dict[str, dict[str, Any]]:
        """The content of batches by key (see `Converter.report`)."""
        report = self.converter.report()
        return report if self.stage is None else self.stage.report(report)

    def vocabulary(self, column: str) -> list[Any]:
        """The values that the codes of a column stand for."""
        return self.converter.vocabulary(column)

    def vocabularies(self) -> dict[str, list[Any]]:
        """The values of each column of codes, in the order of their codes, by key."""
        return self.converter.vocabularies

    def prepare(self) -> None:
        """Build the tables of codes, and what transforms share."""
        for leaf in self.converter.codes.values():
            leaf.prepare()
        prepare(self.transform)

    def open(self, files: Mapping[FileKey, DataFile]) -> BlockReader:
        """A reader of tasks over these files, by key."""
        reader = TaskReader(self, files)
        return reader if self.stage is None else self.stage.reader(reader, files)
