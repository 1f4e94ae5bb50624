"""`tdu schema`: each column's Arrow type, what a batch has of it, and its nulls as far as footers count them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rich.text import Text

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import FAINT, WARNING, Output, Result, Screen
from torch_dataloader_utils.convert.converter import build_converter
from torch_dataloader_utils.formats.parquet.footer import Footer
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.loader.describing import batch_keys
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.sources.source import Source


@dataclass(frozen=True)
class Column:
    """One key of a batch.

    Attributes:
        key: the key; `parent.child` for the field of a struct.
        arrow: the type in the files.
        dtype: of a batch's tensor.
        shape: of a batch's tensor, with B for the rows of a batch and * for a varying size.
        nulls: how many its column has, as the footers count them; None if they do not.
        problem: what training would raise because of them; "" if nothing.
    """

    key: str
    arrow: str
    dtype: str
    shape: str
    nulls: int | None
    problem: str


def run(data: Data, output: Output) -> Result:
    """The columns."""
    with output.warnings_of_package():
        # Unconverted, so that nulls are shown instead of raised.
        _, dataset = data.open(output_format="arrow")
    passes = passes_of(dataset)
    source, options = passes.source, passes.options.convert
    wanted = data.keywords.get("output_format", "torch")
    converter = build_converter(dataset.schema, options, wanted)
    converted = replace(source, scan=replace(source.scan, converter=converter), keys=converter.keys)  # type: ignore[type-var]
    columns = list(_columns(converted, wanted))
    values = {
        "files": len(source.files),
        "rows": source.splits.rows,
        "columns": [asdict(column) for column in columns],
    }
    return Result(values, partial(show, columns, source.size))


def show(columns: list[Column], size: str, screen: Screen) -> None:
    """Print the columns."""
    screen.line(size, "bold")
    rows = [(item.key, item.arrow, item.dtype, item.shape, _nulls_cell(item)) for item in columns]
    screen.table(("column", "Arrow type", "batch dtype", "batch shape", "nulls"), rows, numbers=("nulls",))
    problems = [f"column {item.key}: {item.problem}" for item in columns if item.problem]
    if problems:
        screen.line()
        screen.warnings(problems)


def _nulls_cell(column: Column) -> Text | int | None:
    return Text(f"{column.nulls:,}", WARNING) if column.nulls else Text("?", FAINT) if column.nulls is None else 0


def _columns(source: Source, output_format: str) -> Iterator[Column]:
    report, counts = source.scan.report(), null_counts(source)
    for item in batch_keys(source, output_format):
        of_column = report.get(item.key, {})
        nulls = counts.get(item.key)
        yield Column(
            item.key, of_column.get("arrow", ""), item.dtype, item.shape, nulls, _problem(source, item.key, nulls)
        )


def _problem(source: Source, key: str, nulls: int | None) -> str:
    converter = source.scan.converter  # type: ignore[attr-defined]
    if not nulls or key not in converter.null_error_columns:
        return ""
    found = plural(nulls, "null")
    ways = ["--nulls mask", "--nulls drop"]
    filler = next(plan.filler for plan in converter.plans if plan.key == key)
    if not isinstance(filler, bytes):  # which JSON has not
        ways.append(f"""--nulls '{json.dumps({key: {"kind": "fill", "value": filler}})}' (fills them)""")
    return (
        f"its dtype cannot hold nulls, so batches raise an error at its {found}. Use {', '.join(ways[:-1])} or "
        f"{ways[-1]}."
    )


def null_counts(source: Source) -> Mapping[str, int]:
    """The number of nulls of each column whose nulls the footers of all files count; lists and their values do not."""
    totals: dict[str, int | None] = {}
    footers = [file.layout.metadata for file in source.files]
    if not all(isinstance(footer, Footer) for footer in footers):
        return {}
    counts = [
        _nulls_of(footer.metadata, {s.number for s in file.layout.segments})
        for footer, file in zip(footers, source.files, strict=True)
    ]
    for name in {name for count in counts for name in count}:
        # A file that lacks the column has a null in each row.
        parts = [count.get(name, file.layout.row_count) for count, file in zip(counts, source.files, strict=True)]
        totals[name] = None if None in parts else sum(part or 0 for part in parts)
    return {name: total for name, total in totals.items() if total is not None}


def _nulls_of(metadata: Any, groups: set[int]) -> dict[str, int | None]:
    """The nulls of the columns of a file in some of its row groups; None if one of these does not count them."""
    leaves = {number: metadata.schema.column(number) for number in range(metadata.num_columns)}
    flat = {number: leaf.path for number, leaf in leaves.items() if leaf.max_repetition_level == 0}
    counts: dict[str, int | None] = {}
    for number, path in flat.items():
        found = [metadata.row_group(group).column(number).statistics for group in groups]
        known = [item.null_count for item in found if item is not None and item.has_null_count]
        counts[path] = sum(known) if len(known) == len(found) else None
    return counts
