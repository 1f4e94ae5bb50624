"""Writes docs/race*.md and docs/images/race.svg: the race of the loaders, from benchmarks/race.json.

python scripts/write_race.py          # write
python scripts/write_race.py --check  # exit with 1 if a page or the picture differs from the figures
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pictures import ROOT, box, settle, svg, text

sys.path.append(str(ROOT / "benchmarks" / "peers"))

from contenders import PEERS
from report import label, table_of, title

TABLES = {
    "wide": "40 float32, an int64, an int8",
    "narrow": "an int64, an int32, a float32, an int8",
    "text": "strings of 50 to 300, lists of 5 to 50",
    "embed": "vectors of 256 float32",
    "lineitem": "TPC-H: dates, decimals, strings",
}
SIZES = (1024, 16384)
BARS = 6  # in a panel
WIDTH, LEFT, TOP, PANEL, BAR, STEP, GAP = 1000.0, 190.0, 84.0, 230.0, 13.0, 18.0, 250.0
HEIGHT = BARS * STEP + 40
STYLE = """
.ours { fill: #0f766e; } .peer { fill: #9aa5b1; } .limit { stroke: #616e7c; stroke-dasharray: 4 4; }
text.small { font-size: 12px; } text.ours { fill: #0f766e; font-size: 12px; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  .ours { fill: #2dd4bf; } text.ours { fill: #2dd4bf; } .peer { fill: #616e7c; } .limit { stroke: #9aa5b1; }
}
"""
INTRODUCTION = """# The race in full

Every loader on the same files, written by `python scripts/write_race.py` from `benchmarks/race.json`, which is what
`python benchmarks/peers --results benchmarks/race.json` measured on {machine}. What the figures say is on the page
[Benchmarks](benchmarks.md#compared-with-other-loaders). This one has those of batches of 1,024 and 16,384 rows in file
order; others have [shuffled passes](race-shuffled.md), and [small batches and worker processes](race-more.md).

- A run is a whole pass in a fresh process, from the call that makes the loader to its last batch, without imports. A
  rate with "*" is that of some seconds of a pass, from the first batch on.
- In each round every loader runs once, one after another. Figures are medians over rounds. A share is that of LIMIT in
  the same round; LIMIT decodes whole row groups with pyarrow on all cores, and discards them.
- CPU seconds and memory (of all processes, shared pages divided) are those above imports.
- "exact batches": whether all batches but the last have B rows.
- Each loader is used as its own documentation recommends for batches of tensors: see `benchmarks/peers/loaders`. Lance
  reads a format of its own; jollyjack reads copies of the files without dictionaries.
"""
SHUFFLED = """# The race: shuffled passes

How the figures were measured, and what a column means, is on [the first page](race.md). Loaders shuffle in different
ways, so rates do not compare: this package permutes rows in windows of 128 MiB, others a row group, a file, a buffer or
the order of batches.
"""
MORE = """# The race: small batches and worker processes

How the figures were measured, and what a column means, is on [the first page](race.md).
"""

Figures = dict[str, Any]


def pages(kept: Figures) -> dict[str, str]:
    """The text of each page, by its name."""
    parts = {"race": [INTRODUCTION.format(machine=kept["machine"])], "race-shuffled": [SHUFFLED], "race-more": [MORE]}
    for key, figures in sorted(kept["cases"].items(), key=lambda item: order(*json.loads(item[0]))):
        _, rows, workers, shuffle = json.loads(key)
        name = "race-shuffled" if shuffle else "race" if rows in SIZES and not workers else "race-more"
        parts[name].append(f"## {title(*json.loads(key))}\n\n{table_of(figures, kept['versions'])}")
    return {name: "\n".join(texts) for name, texts in parts.items()}


def order(table: str, rows: int, workers: int, shuffle: bool) -> tuple[Any, ...]:
    return shuffle, workers, list(TABLES).index(table), rows


def panel(figures: Figures, left: float, top: float) -> list[str]:
    """The fastest loaders of a case, with LIMIT as a line."""
    rates = {name: each["rate"] / 1e6 for name, each in figures.items() if "error" not in each and name != "limit"}
    fastest = sorted(rates, key=lambda name: -rates[name])[:BARS]
    limit = figures["limit"]["rate"] / 1e6
    unit = PANEL / max(limit, rates[fastest[0]])
    parts = []
    for place, name in enumerate(fastest):
        at, kind = top + place * STEP, "ours" if name == "ours" else "peer"
        own = " (own files)" if PEERS[name].own_format else ""
        named = label(name, {"tdu_020": "0.2.0"}).replace("`", "")
        words = "this package" if name == "ours" else named + own
        parts += [
            text(left - 8, at + 11, words, "ours" if name == "ours" else "small", "end"),
            box(left, at, rates[name] * unit, BAR, kind),
            text(left + rates[name] * unit + 6, at + 11, f"{rates[name]:.3g}", "over small"),
        ]
    at = left + limit * unit
    line = f'<line class="limit" x1="{at:.1f}" y1="{top - 6:.1f}" x2="{at:.1f}" y2="{top + len(fastest) * STEP:.1f}"/>'
    return [line, *parts]


def drawn(kept: Figures) -> str:
    heading = "Million rows a second of the six fastest loaders; the dashed line is decoding alone (pyarrow)"
    parts = [text(10, 24, heading, "strong")]
    for column, size in enumerate(SIZES):
        left = LEFT + column * (PANEL + GAP)
        parts.append(text(left, 48, f"batches of {size:,} rows", "strong"))
        for row, (table, words) in enumerate(TABLES.items()):
            top = TOP + row * HEIGHT
            if column == 0:
                parts.append(text(10, top - 12, f"{table}: {words}", "faint small"))
            parts += panel(kept["cases"][json.dumps([table, size, 0, False])], left, top)
    return svg(WIDTH, TOP + len(TABLES) * HEIGHT - 20, heading, STYLE, parts)


def main() -> None:
    kept = json.loads((ROOT / "benchmarks" / "race.json").read_text())
    for name, written in pages(kept).items():
        path = ROOT / "docs" / f"{name}.md"
        if "--check" not in sys.argv:
            path.write_text(written)
            print(path.relative_to(ROOT))
        elif not path.exists() or path.read_text() != written:
            sys.exit(f"{path.relative_to(ROOT)} is out of date: run python scripts/write_race.py")
    settle("race.svg", drawn(kept))


main()
