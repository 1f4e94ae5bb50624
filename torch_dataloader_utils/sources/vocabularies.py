"""One vocabulary for a column of codes of several sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from torch_dataloader_utils.convert.codes import CodesLeaf
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.source import Source


def with_one_vocabulary(sources: Sequence[Source]) -> list[Source]:
    """The sources, where the codes of a column stand for the same values in all that collected these by a scan.

    Args:
        sources: over files or tables.
    """
    found: dict[Any, list[pa.Array]] = {}
    for source in sources:
        for leaf in _collected(source).values():
            found.setdefault(_column(leaf), []).append(pc.cast(leaf.vocabulary, _column(leaf)[1]))
    joined = {column: pa.concat_arrays(values) for column, values in found.items() if len(values) > 1}
    return [_learned(source, joined) for source in sources]


def with_one_list(datasets: Sequence[Any]) -> list[Any]:
    """The datasets of a combination, with one list of the names of files for all: those of the first are first."""
    sources = [each for each in datasets if isinstance(each, Source)]
    return [_extended(each, sources) if isinstance(each, Source) else each for each in datasets]


def continued(source: Source, before: Source) -> Source:
    """The source of a table's rows, where the codes of files are those that another one of the table gave them."""
    return _extended(source, [before])


def _extended(source: Source, others: Sequence[Source]) -> Source:
    """The source whose names of files are behind those of the others."""
    lists = [cast(ScanSpec, other.scan).converter.extending for other in others]
    leaves = {}
    for key, leaf in cast(ScanSpec, source.scan).converter.extending.items():
        found = [pc.cast(each[key].vocabulary, leaf.type) for each in lists if key in each]
        leaves[key] = leaf.extended(pa.concat_arrays([pa.array([], leaf.type), *found]))
    return _with_codes(source, leaves) if leaves else source


def _with_codes(source: Source, leaves: Mapping[str, CodesLeaf]) -> Source:
    scan = cast(ScanSpec, source.scan)
    return replace(source, scan=replace(scan, converter=scan.converter.with_codes(leaves)))


def _learned(source: Source, joined: Mapping[Any, pa.Array]) -> Source:
    leaves = {key: leaf for key, leaf in _collected(source).items() if _column(leaf) in joined}
    if not leaves:
        return source
    values = {key: pc.cast(joined[_column(leaf)], leaf.type) for key, leaf in leaves.items()}
    scan = cast(ScanSpec, source.scan)
    return replace(source, scan=replace(scan, converter=scan.converter.learned(values)))


def _collected(source: Source) -> dict[str, CodesLeaf]:
    """The columns of codes whose values a scan collected, by key."""
    return {key: leaf for key, leaf in cast(ScanSpec, source.scan).converter.codes.items() if leaf.collected}


def _column(leaf: CodesLeaf) -> tuple[str, pa.DataType]:
    """What columns have in common that can share a vocabulary: their key, and a type that holds all values."""
    return leaf.key, {str: pa.large_string(), bytes: pa.large_binary()}.get(leaf.kind, leaf.type)
