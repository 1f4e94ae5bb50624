"""Labels of `class_weights` that no row has, as far as footers and folder names say without reading."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.printing import listed, shown
from torch_dataloader_utils.reading.files import FileOpener
from torch_dataloader_utils.sources.sorted_columns import Range, ranges_of_path

_LOG = logging.getLogger("torch_dataloader_utils")
_MOST_SEGMENTS = 100_000  # whose ranges are looked at: a few seconds


def report_absent_labels(
    labels: Sequence[Any], column: str, files: Sequence[DataFile], opener: FileOpener, name: str
) -> None:
    """Warn of labels with a weight that no row has.

    Args:
        labels: the labels.
        column: of the labels.
        files: those read.
        opener: opens them.
        name: the data's name.
    """
    absent, ranges = _absent(labels, _ranges(files, opener, column))
    if absent:
        _LOG.warning(
            "%s: class_weights: no row has the label(s) %s in column %r, whose %s; their weights have no effect",
            name, listed(absent, show=shown), column, _values(ranges),
        )  # fmt: skip


def _absent(labels: Sequence[Any], ranges: Iterator[Range | None]) -> tuple[list[Any], set[Range]]:
    """The labels in no range, and the ranges; no labels if a range is not known or cannot be compared."""
    absent, seen = list(labels), set[Range]()
    for number, found in enumerate(ranges):
        if found is None or number == _MOST_SEGMENTS:
            return [], seen
        if found in seen:
            continue
        seen.add(found)
        low, high = found
        try:
            absent = [label for label in absent if not low <= label <= high]
        except TypeError:  # the column's type differs between files
            return [], seen
        if not absent:
            return [], seen
    return absent if seen else [], seen


def _ranges(files: Sequence[DataFile], opener: FileOpener, column: str) -> Iterator[Range | None]:
    """The range of labels of each segment; None if it is not known."""
    for file in files:
        of_path = ranges_of_path(file)
        if column in dict(file.partition):
            yield of_path.get(column)
            continue
        for segment in file.layout.segments:
            yield opener.value_ranges(file.layout, segment.number, (column,)).get(column)


def _values(ranges: set[Range]) -> str:
    if all(low == high for low, high in ranges):
        return f"labels are {listed(sorted(low for low, _ in ranges), show=shown)}"
    return f"labels lie from {shown(min(low for low, _ in ranges))} to {shown(max(high for _, high in ranges))}"
