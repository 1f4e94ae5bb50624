"""JSON Lines: a segment is a byte range, and each of its lines is an object."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.formats.text.format import TextFormat
from torch_dataloader_utils.formats.text.json_parser import JsonParser, inferred
from torch_dataloader_utils.formats.text.limits import MOST_LINE_BYTES
from torch_dataloader_utils.formats.text.plan import Head, TextPlan, longest_line


class JsonLinesFormat(TextFormat):
    """The JSON Lines format."""

    name = "jsonl"
    options = MappingProxyType({"on_bad_lines": "error", "max_line_bytes": MOST_LINE_BYTES})

    def plan(self, path: str, head: Head, options: Mapping[str, Any]) -> tuple[TextPlan, pa.Schema]:
        """The plan for reading the file, and the fields of its first lines, with types that fit these lines."""
        while b"\n" not in head.text and not head.whole:
            head.grow()
        lines = head.lines(head.start)
        parser = JsonParser("lines", pa.schema([]))
        rows = parser.rows(lines)
        plan = TextPlan(
            size=0 if head.whole and not rows else head.size,
            start=head.start,
            step=self.range_bytes,
            tail=longest_line(lines),
            codec=head.codec,
        )
        return plan, inferred(path, parser, rows, options)

    def parser(
        self, path: str, plan: TextPlan, options: Mapping[str, Any], schema: pa.Schema
    ) -> tuple[JsonParser, pa.Schema]:
        """A parser of all requested columns; fields that no object has are null."""
        schema = schema if len(schema) else pa.schema([("\0", pa.null())])  # so that rows can be counted
        return JsonParser(plan.kind, schema, declared=self.declared), schema


FORMAT = JsonLinesFormat()
