"""Text files, cut into ranges of whole lines by file length alone; the common base of CSV and JSON."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.text.errors import Parser
from torch_dataloader_utils.formats.text.limits import LongLine, first_long_row, long_line
from torch_dataloader_utils.formats.text.plan import Head, TextPlan, is_utf8
from torch_dataloader_utils.formats.text.reader import TextReader
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Decoding, Storage

RANGE_BYTES = 2 * 2**20


@dataclass(frozen=True)
class TextFormat(Format):
    """A text format; the layout's metadata is a `TextPlan`.

    Attributes:
        range_bytes: size of a segment in bytes.
        declared: whether the columns' types are declared: then whole numbers may be rounded to floats.
    """

    range_bytes: int = RANGE_BYTES
    declared: bool = False

    segment_name = "byte range"
    typed = False
    columnar = False
    described = "text"

    @abstractmethod
    def plan(self, path: str, head: Head, options: Mapping[str, Any]) -> tuple[TextPlan, pa.Schema]:
        """The plan for reading a file, and the columns in its first lines, with types that fit these lines."""

    @abstractmethod
    def parser(
        self, path: str, plan: TextPlan, options: Mapping[str, Any], schema: pa.Schema
    ) -> tuple[Parser, pa.Schema]:
        """A parser of a file's rows, and the requested columns that it returns."""

    def inspect(
        self, source: pa.NativeFile, file: DataFileInfo, options: Mapping[str, Any]
    ) -> tuple[FileLayout, pa.Schema]:
        """The byte ranges, and the columns in the first lines, with types that fit these lines."""
        _check(options)
        most_line = options["max_line_bytes"]
        head = Head(file.path, source, options.get("encoding", "utf-8"), most_line)
        try:
            plan, schema = self.plan(file.path, head, options)
            if (row := first_long_row(plan.kind, head.text[head.start :], most_line)) is not None:
                raise LongLine(head.start + row)
        except LongLine as error:
            number = head.text.count(b"\n", 0, error.offset) + 1
            raise long_line(file.path, f"line {number}", most_line) from error
        return plan.cut(head).layout(), schema

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> TextReader:
        """A reader of the requested columns, in the requested types."""
        chosen = {**self.options, **options}
        _check(chosen)
        with Decoding(file.path):
            parser, given = self.parser(file.path, layout.metadata, chosen, schema)
            return TextReader(file, layout, storage, chosen, given, parser)

    def with_declared_types(self) -> TextFormat:
        """The format, which then parses the text of numbers as the types say."""
        return replace(self, declared=True)

    def numbers_rows(self, options: Mapping[str, Any]) -> bool:
        """Whether bad lines are errors."""
        return options.get("on_bad_lines") != "skip"

    def pack(self, layout: FileLayout, schema: pa.Schema) -> bytes:
        """The plan and the schema; the ranges, of which there may be very many, are computed from the plan."""
        return super().pack(replace(layout, segments=()), schema)

    def unpack(self, data: bytes | memoryview) -> tuple[FileLayout, pa.Schema]:
        """The arguments that `pack` received."""
        layout, schema = super().unpack(data)
        return layout.metadata.layout(), schema

    def pack_metadata(self, metadata: TextPlan) -> tuple[Any, bytes]:
        """The plan."""
        return asdict(metadata), b""

    def unpack_metadata(self, plain: Any, blob: bytes, schema: pa.Schema) -> TextPlan:
        """The plan."""
        return TextPlan(**{**plain, "names": tuple(plain["names"])})


def _check(options: Mapping[str, Any]) -> None:
    """Check the values of the options that all text formats have."""
    if options["on_bad_lines"] not in ("error", "skip"):
        raise OptionError(
            f"format_options={{'on_bad_lines': {options['on_bad_lines']!r}}}: expected 'error' or 'skip'."
        )
    if options["max_line_bytes"] < 1:
        raise OptionError(
            f"format_options={{'max_line_bytes': {options['max_line_bytes']}}}: expected at least 1 (byte)."
        )
    try:
        is_utf8(options.get("encoding", "utf-8"))
    except LookupError as error:
        raise OptionError(
            f"format_options={{'encoding': {options['encoding']!r}}}: Python has no such encoding."
        ) from error
