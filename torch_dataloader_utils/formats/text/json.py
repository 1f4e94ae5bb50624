"""JSON: an array of objects, or consecutive documents, read as one segment; one object per line is JSON Lines."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.formats.text.errors import Row, cited
from torch_dataloader_utils.formats.text.json_parser import JsonParser, inferred
from torch_dataloader_utils.formats.text.json_rows import object_rows
from torch_dataloader_utils.formats.text.jsonl import JsonLinesFormat
from torch_dataloader_utils.formats.text.plan import Head, TextPlan
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import damaged


class JsonFormat(JsonLinesFormat):
    """The JSON format; a file with one object per line is read as JSON Lines."""

    name = "json"

    def plan(self, path: str, head: Head, options: Mapping[str, Any]) -> tuple[TextPlan, pa.Schema]:
        """The plan for reading the file as lines, documents or an array, and the fields of its first objects."""
        start = head.text[head.start :].lstrip()[:1]
        if not start and head.whole:
            return TextPlan(0), pa.schema([])
        if start not in (b"[", b"{"):
            raise damaged(
                path,
                f"{printable(path)}, line 1: is not JSON objects: the file begins with {cited(head.text[:20])}.",
            )
        if start == b"{" and _is_lines(head):
            return super().plan(path, head, options)
        kind = "array" if start == b"[" else "documents"
        rows = _first_objects(path, head)
        schema = inferred(path, JsonParser(kind, pa.schema([])), rows, options)
        size = 0 if head.whole and not rows else head.size
        return TextPlan(size, head.start, kind=kind, codec=head.codec), schema


FORMAT = JsonFormat()


def _is_lines(head: Head) -> bool:
    """Whether the first line is an object, and all lines of the head look like one."""
    lines = [stripped for line in head.lines(head.start).split(b"\n") if (stripped := line.strip())]
    try:
        first = json.loads(lines[0]) if lines else None
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and all(line[:1] == b"{" and line[-1:] == b"}" for line in lines)


def _first_objects(path: str, head: Head) -> list[Row]:
    """The complete objects in the head; reads until there is at least one."""
    while True:
        rows: list[Row] = []
        try:
            content = codecs.getincrementaldecoder("utf-8")().decode(head.text[head.start :], head.whole)
            rows.extend(object_rows(content))  # keeps the objects before an error
        except UnicodeDecodeError as error:
            line = head.text.count(b"\n", 0, head.start + error.start) + 1
            raise damaged(
                path,
                f"{printable(path)}, line {line}: byte {head.start + error.start} of the text is not UTF-8.",
            ) from error
        except json.JSONDecodeError as error:
            if head.whole:
                raise damaged(
                    path,
                    f"{printable(path)}, line {error.lineno}: is not JSON: {error.msg} at character {error.colno}.",
                ) from error
        if rows or head.whole:
            return rows
        head.grow()
