"""Joining row selections of one split: what several ranks left of it becomes few runs again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from torch_dataloader_utils.model import Piece, Rows, Split


def merged_rows(parts: Sequence[Rows]) -> list[Rows]:
    """The same rows (no row twice among the parts) in few values, by their first row.

    Between two neighbouring ends of parts each part is one pattern; where the patterns together leave no row out, they
    are one run.
    """
    parts = [part.slice(0, len(part)) for part in parts if len(part)]
    edges = sorted({edge for part in parts for edge in (part.start, part.stop)})
    parts = sorted(parts, key=lambda part: part.start)
    found: list[Rows] = []
    active: list[Rows] = []
    at = 0
    for start, stop in pairwise(edges):
        while at < len(parts) and parts[at].start <= start:
            active.append(parts[at])
            at += 1
        active = [part for part in active if part.stop > start]
        inside = [clipped for part in active if len(clipped := part.clip(start, stop))]
        full = sum(map(len, inside)) == stop - start
        found += [Rows(start, stop)] if full else inside
    return _joined(found)


def _joined(runs: Sequence[Rows]) -> list[Rows]:
    """The runs with those joined that continue one pattern without a gap."""
    out: list[Rows] = []
    last: dict[tuple[int, int, int], int] = {}
    for run in sorted(runs, key=lambda run: run.start):
        pattern = (1, 1, 0) if run.contiguous else (run.step, run.block, run.phase % run.step)
        place = last.get(pattern)
        if place is not None:
            whole = replace(out[place], stop=run.stop)
            if len(whole) == len(out[place]) + len(run):
                out[place] = whole
                continue
        last[pattern] = len(out)
        out.append(run)
    return sorted((run.slice(0, len(run)) for run in out), key=lambda run: run.start)


def merged_segments(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces of one split whose row counts only reading tells, with neighbouring ranges of segments joined."""
    spans: list[Split] = []
    for source in sorted((piece.source for piece in pieces if isinstance(piece.source, Split)), key=_first_segment):
        if spans and spans[-1].segments and source.segments and spans[-1].segments[1] == source.segments[0]:
            before = spans[-1]
            spans[-1] = replace(
                before,
                segments=(spans[-1].segments[0], source.segments[1]),
                size_bytes=before.size_bytes + source.size_bytes,
            )
        else:
            spans.append(source)
    return [replace(pieces[0], source=source) for source in spans]


def _first_segment(split: Split) -> int:
    return split.segments[0] if split.segments else 0
