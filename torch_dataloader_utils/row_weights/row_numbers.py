"""The numbers of rows in the order of all, from their files and places there, as `_file` and `_pos` have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import CountsRequiredError, OptionError
from torch_dataloader_utils.hashing import hashes_of_numbers
from torch_dataloader_utils.model import DataFile, DataFileInfo
from torch_dataloader_utils.options.sources import FILE
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.reading.combined import scans_of
from torch_dataloader_utils.reading.places import PLACE_FIELD
from torch_dataloader_utils.reading.row_count_scan import Over, Sharing, narrowed, over_segments
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.task_reader import TaskReader
from torch_dataloader_utils.row_weights.weighted import Line
from torch_dataloader_utils.row_weights.whole_weights import as_array
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.storage import usable_cores


def given_rows(rows: Any) -> tuple[I64, I64]:
    """The file codes and positions of rows, int64 [rows] each, from a pair of lists, arrays or tensors.

    Raises:
        OptionError: they are something else.
    """
    pair = tuple(rows) if isinstance(rows, (tuple, list)) else ()
    codes, positions = map(as_array, pair) if len(pair) == 2 else (np.zeros(0), np.zeros(1))
    if codes.shape != positions.shape or codes.ndim != 1 or not all(_whole(each) for each in (codes, positions)):
        raise OptionError(
            f"set_row_weights(rows={shown(rows)}): expected a pair (file codes, positions), whole numbers of shape "
            "[rows] each, as batches have them under '_file' and '_pos'."
        )
    return codes.astype(np.int64), positions.astype(np.int64)


def _whole(values: npt.NDArray[Any]) -> bool:
    return values.dtype.kind in "iu" or not values.size


def numbers_of_files(source: Source, codes: I64) -> I64:
    """The numbers of files, in file order, that these codes of `_file` stand for, int64 [rows].

    Raises:
        OptionError: there is no such file among those that are read, or several parts of a combination read it.
    """
    files, known = source.files, source.scan.vocabularies().get(FILE)
    of_files: list[Any] = list(range(len(files))) if known is None else [_name(file) for file in files]
    names = of_files if known is None else known  # without names of files in batches, codes are their numbers
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(names):
        wrong = codes[(codes < 0) | (codes >= len(names))]
        raise OptionError(
            f"set_row_weights: there is no file {int(wrong[0])}: expected codes of files from 0 to {len(names) - 1}."
        )
    places = {name: place for place, name in enumerate(of_files)}
    numbers = np.array([places.get(name, -1) for name in names], np.int64)[codes]
    if len(places) < len(files):
        raise OptionError(
            "set_row_weights: datasets of the combination read the same file, so its name does not tell of which its "
            "rows are: give the weights of all rows, in file order."
        )
    if (numbers < 0).any():
        name = names[int(codes[numbers < 0][0])]
        raise OptionError(f"set_row_weights: {name}: no row of this file is read.")
    return numbers


def _name(file: DataFile) -> str:
    """The name of a file, as `_file` has it."""
    given = dict(file.partition).get(FILE)
    return str(getattr(file.layout.metadata, "table_path", file.info.path) if given is None else given)


def row_numbers(source: Source, line: Line, codes: I64, positions: I64, over: Over) -> I64:
    """The numbers of rows in the order of all, int64 [rows].

    Args:
        source: what they are rows of; no epoch of it.
        line: its segments.
        codes: of each row's file, as `_file` has them, int64 [rows].
        positions: its number in that file, before deletes and filters, int64 [rows].
        over: shows the progress over segments that are read for it.

    Raises:
        OptionError: there is no such row among those that are read.
        CountsRequiredError: which rows are read of a file does not show from numbers.
    """
    in_files = numbers_of_files(source, codes)
    numbers = np.empty(len(codes), np.int64)
    turns = np.argsort(in_files, kind="stable")
    files, begins = np.unique(in_files[turns], return_index=True)
    for file, rows in zip(files.tolist(), np.split(turns, begins[1:]) if len(begins) else (), strict=True):
        numbers[rows] = _in_file(source, line, file, positions[rows], over)
    return numbers


def _in_file(source: Source, line: Line, number: int, positions: I64, over: Over) -> I64:
    """The same for rows of one file."""
    file, first = line.files[number], int(line.segments[number])
    firsts = line.firsts[first : first + len(file.layout.segments) + 1]
    if not file.layout.counted:
        found = _physical(file, firsts, positions)
    elif file.layout.known:
        found = _live(_scan_of(source, file), file, firsts, positions, over)
    else:
        found = _of_text(_scan_of(source, file), file, firsts, positions)
    if (found < 0).any():
        raise OptionError(
            f"set_row_weights: {file.info.path}: row {int(positions[found < 0][0])} is not read: there is no such row, "
            "or it was deleted, or a filter, subset or limit leaves it out."
        )
    return found


def _physical(file: DataFile, firsts: I64, positions: I64) -> I64:
    """Numbers of rows of segments that are read whole; -1 for those of others."""
    starts = np.array([segment.first_row for segment in file.layout.segments], np.int64)
    place = np.searchsorted(starts, positions, side="right") - 1
    within = positions - starts[place]
    read = (place >= 0) & (within < np.diff(firsts)[place])
    return np.where(read, firsts[place] + within, -1)


def _of_text(scan: ScanSpec, file: DataFile, firsts: I64, positions: I64) -> I64:
    """Numbers of rows of a file that does not say how many are before a segment; -1 for those that are not read."""
    if scan.selects_rows:
        raise CountsRequiredError(
            f"set_row_weights: {file.info.path}: which rows a filter or subset leaves of a text file does not show "
            "from their numbers: give the weights of all rows, in file order."
        )
    read = (positions >= 0) & (positions < firsts[-1] - firsts[0])
    return np.where(read, firsts[0] + positions, -1)


def _live(scan: ScanSpec, file: DataFile, firsts: I64, positions: I64, over: Over) -> I64:
    """Numbers of rows of segments of which some are left out; -1 for those that are not read.

    What leaves them out is read again.
    """
    placed = _placed(scan)
    assert placed.keys is not None
    different, which = np.unique(positions, return_inverse=True)
    asked = hashes_of_numbers(placed.keys.of(file.info), different)
    turns = np.argsort(asked)
    asked, found = asked[turns], np.full(len(different), -1, np.int64)

    def look(reader: TaskReader, info: DataFileInfo, place: int) -> None:
        _, table = reader.live(info.key, place)
        places = table.column(PLACE).to_numpy()[: firsts[place + 1] - firsts[place]]  # a limit leaves out the rest
        at = np.minimum(np.searchsorted(asked, places), len(asked) - 1)
        hit = asked[at] == places
        found[turns[at[hit]]] = firsts[place] + np.flatnonzero(hit)

    over_segments(placed, [file], Sharing(), usable_cores(), over, look)
    return found[which]


def _placed(scan: ScanSpec) -> ScanSpec:
    """The scan of only what decides which rows are read, and their places."""
    narrow = replace(narrowed(scan), transform=None, draws=None, skipping=None, stage=None, copies=None)
    if scan.keys is None:
        return narrow.with_places()
    columns = (narrow.schema, narrow.given)
    schema, given = (each if PLACE in each.names else each.append(PLACE_FIELD) for each in columns)
    return replace(narrow, schema=schema, given=given)


def _scan_of(source: Source, file: DataFile) -> ScanSpec:
    scan = scans_of(source.scan)[file.info.part]
    assert isinstance(scan, ScanSpec)
    return scan
