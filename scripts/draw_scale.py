"""Draws docs/images/scale.svg: how time and memory grow with the shape of the data, from benchmarks/scale.json.

python scripts/draw_scale.py          # draw
python scripts/draw_scale.py --check  # exit with 1 if the picture differs from the figures
"""

from __future__ import annotations

import json
from math import ceil, floor, log10
from typing import Any

from pictures import ROOT, box, settle, svg, text

# Kind of shape -> the title of its panels, and what a value on the axis is called.
KINDS = {
    "columns": ("columns, 320 MB in all", ""),
    "groups": ("one row group of so many rows of 16 bytes", ""),
    "files": ("files of 10 rows", ""),
}
# Key -> its words and class; those of "manifest" are of the same files from a manifest.
TIMES = {"pass": ("whole pass", "whole"), "first": ("first batch", "first"), "start": ("loader made", "start")}
WIDTH, LEFT, TOP, PANEL, HEIGHT, STEP, GAP = 1000.0, 52.0, 78.0, 270.0, 170.0, 230.0, 46.0
STYLE = """
polyline { fill: none; stroke-width: 1.8; } .whole { stroke: #616e7c; } .first { stroke: #0f766e; }
.start { stroke: #b45309; } .manifest { stroke: #b45309; stroke-dasharray: 4 3; } .memory { stroke: #4338ca; }
.linear { stroke: #cbd2d9; stroke-width: 1; } text.small { font-size: 12px; }
@media (prefers-color-scheme: dark) {
  .whole { stroke: #9aa5b1; } .first { stroke: #2dd4bf; } .start, .manifest { stroke: #fbbf24; }
  .memory { stroke: #a5b4fc; } .linear { stroke: #3e4c59; }
}
"""

Points = list[tuple[float, float]]


class Panel:
    """A panel with logarithmic axes, both with the same length of a decade if `decades` are."""

    def __init__(self, left: float, top: float, lines: dict[str, Points]) -> None:
        self.left, self.top, self.lines = left, top, lines
        xs = [x for points in lines.values() for x, _ in points]
        ys = [y for points in lines.values() for _, y in points]
        self.x = log10(min(xs)), log10(max(xs))
        self.y = floor(log10(min(ys))), ceil(log10(max(ys)))

    def place(self, x: float, y: float) -> str:
        across = (log10(x) - self.x[0]) / (self.x[1] - self.x[0])
        up = (log10(y) - self.y[0]) / (self.y[1] - self.y[0])
        return f"{self.left + across * PANEL:.1f},{self.top + HEIGHT * (1 - up):.1f}"

    def drawn(self, unit: str) -> list[str]:
        parts = [box(self.left, self.top, PANEL, HEIGHT, "panel")]
        for decade in range(self.y[0], self.y[1] + 1):
            at = self.top + HEIGHT * (1 - (decade - self.y[0]) / (self.y[1] - self.y[0]))
            parts.append(text(self.left - 5, at + 4, f"{10.0**decade:g}{unit}", "faint small", "end"))
        for x, _ in next(iter(self.lines.values())):
            at = self.left + (log10(x) - self.x[0]) / (self.x[1] - self.x[0]) * PANEL
            anchor = {self.x[0]: "start", self.x[1]: "end"}.get(log10(x), "middle")
            parts.append(text(at, self.top + HEIGHT + 16, in_short(x), "faint small", anchor))
        for kind, points in self.lines.items():
            parts.append(f'<polyline class="{kind}" points="{" ".join(self.place(*point) for point in points)}"/>')
        return parts


def in_short(number: float) -> str:
    """The number with k or M."""
    for size, word in ((2**20, "Mi"), (1000, "k")):
        if number >= size and number % size == 0:
            return f"{number / size:g}{word}"
    return f"{number:g}"


def lines_of(found: dict[str, Any]) -> tuple[dict[str, Points], dict[str, Points]]:
    """The lines of seconds, and of memory."""
    numbers = {int(number): each for number, each in found.items()}
    times = {kind: [(n, each[key]) for n, each in numbers.items()] for key, (_, kind) in TIMES.items()}
    if "from manifest" in next(iter(numbers.values())):
        times["manifest"] = [(n, each["from manifest"]["start"]) for n, each in numbers.items()]
    return times, {"memory": [(n, max(each["MiB"], 1)) for n, each in numbers.items()]}


def legend() -> list[str]:
    words = {kind: words for words, kind in TIMES.values()}
    words |= {"manifest": "made from a manifest", "memory": "peak memory"}
    parts, left = [], 340.0
    for kind, each in words.items():
        parts.append(f'<polyline class="{kind}" points="{left:.0f},20 {left + 22:.0f},20"/>')
        parts.append(text(left + 27, 24, each, "small"))
        left += 44 + 6.2 * len(each)
    return parts


def drawn() -> str:
    kept = json.loads((ROOT / "benchmarks" / "scale.json").read_text())
    title = "Growth with the shape of the data"
    parts = [text(10, 24, title, "strong"), *legend()]
    for column, (kind, (words, _)) in enumerate(KINDS.items()):
        left = LEFT + column * (PANEL + GAP)
        parts.append(text(left, TOP - 14, words, "small"))
        for row, (lines, unit) in enumerate(zip(lines_of(kept[kind]), (" s", ""), strict=True)):
            parts += Panel(left, TOP + row * STEP, lines).drawn(unit)
            if row:
                parts.append(text(left, TOP + STEP - 10, "MiB", "faint small"))
    return svg(WIDTH, TOP + STEP + HEIGHT + 30, title, STYLE, parts)


settle("scale.svg", drawn())
