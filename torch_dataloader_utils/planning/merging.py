"""Joins row selections of one split: what several ranks left becomes few runs again, of eight strided ranks one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise

from torch_dataloader_utils.model import Piece, Rows, Split

_NEAR = 8  # runs searched for one that a leftover block extends: ranks leave few patterns side by side


def merged_rows(parts: Sequence[Rows]) -> list[Rows]:
    """The same rows as few values, sorted by first row; no row may be in two parts.

    Between two neighbouring ends of parts, each part is one pattern. If these patterns together cover every row in
    between, they become one run.
    """
    parts = [part.slice(0, len(part)) for part in parts if len(part)]
    edges = sorted({edge for part in parts for edge in (part.start, part.stop)})
    parts = sorted(parts, key=lambda part: part.start)
    out: list[Rows] = []
    active: list[Rows] = []
    at = 0
    for start, stop in pairwise(edges):
        while at < len(parts) and parts[at].start <= start:
            active.append(parts[at])
            at += 1
        active = [part for part in active if part.stop > start]
        inside = [clipped for part in active if len(clipped := part.clip(start, stop))]
        full = sum(map(len, inside)) == stop - start
        out += [Rows(start, stop)] if full else inside
    return _joined(out)


def _joined(runs: Sequence[Rows]) -> list[Rows]:
    """The runs, with those joined that continue one pattern without a gap."""
    out: list[Rows] = []
    last: dict[tuple[int, int, int], int] = {}
    for run in sorted((run.slice(0, len(run)) for run in runs), key=lambda run: run.start):
        near = range(len(out) - 1, max(-1, len(out) - 1 - _NEAR), -1)
        for place in (last.get(pattern(run), len(out) - 1), *near):
            whole = _one(out[place], run) if out else None
            if whole is not None:
                out[place] = whole
                break
        else:
            place = len(out)
            out.append(run)
        last[pattern(out[place])] = place
    return out


def _one(before: Rows, after: Rows) -> Rows | None:
    """Both as one run, or None if no run selects exactly their rows.

    The pattern is taken from either: rows within one block have none. Two single rows always form a stride.
    """
    rows = len(before) + len(after)
    if before.stop > after.start:
        return None
    pair = Rows(before.start, after.stop, after.start - before.start, 1, before.start)
    for one in (before, after, *([pair] if rows == 2 else [])):
        whole = replace(one, start=before.start, stop=after.stop)
        if len(whole) == rows and all(_same(whole.clip(x.start, x.stop), x) for x in (before, after)):
            return whole
    return None


def _same(clipped: Rows, run: Rows) -> bool:
    """Whether rows that were clipped to the ends of a run are the rows of the run.

    Three stretches without a gap determine a pattern: the second is a whole block, and the third begins one step later.
    """
    return pattern(clipped) == pattern(run) or list(islice(clipped.runs(), 3)) == list(islice(run.runs(), 3))


def pattern(run: Rows) -> tuple[int, int, int]:
    """The values that identify a pattern: equal for all rows cut from it."""
    return (1, 1, 0) if run.contiguous else (run.step, run.block, run.phase % run.step)


def merged_segments(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces of one split with unknown row counts, with neighbouring ranges of segments joined."""
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
