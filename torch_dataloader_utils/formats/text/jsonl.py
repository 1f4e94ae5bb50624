"""JSON Lines: a segment is a range of bytes, every line of it an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.formats.text import lines as text
from torch_dataloader_utils.formats.text.json_parser import JsonParser, inferred
from torch_dataloader_utils.formats.text.lines import Head, TextFormat, TextPlan

OPTIONS = {"on_bad_lines": "error"}


def plan(path: str, head: Head, options: Mapping[str, Any], range_bytes: int) -> tuple[TextPlan, pa.Schema]:
    """How the file is read: the fields of its first lines, with types that these fit."""
    while b"\n" not in head.text and not head.whole:
        head.grow()
    lines = head.lines(head.start)
    lines_parser = JsonParser("lines", pa.schema([]))
    rows = lines_parser.rows(lines)
    made = TextPlan(
        size=0 if head.whole and not rows else head.size,
        start=head.start,
        step=range_bytes,
        tail=text.longest_line(lines),
        codec=head.codec,
    )
    return made, inferred(path, lines_parser, rows, options)


def parser(path: str, made: TextPlan, options: Mapping[str, Any], schema: pa.Schema) -> tuple[JsonParser, pa.Schema]:
    """A parser of all columns wanted: fields that no object has are null. If none are, of one that is always null."""
    schema = schema if len(schema) else pa.schema([("\0", pa.null())])  # its rows can be counted
    return JsonParser(made.kind, schema), schema


FORMAT = TextFormat("jsonl", OPTIONS, plan, parser)
