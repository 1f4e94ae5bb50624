"""Draws docs/images/speed.svg: three bars from the first table in docs/benchmarks.md.

python scripts/draw_speed.py          # draw
python scripts/draw_speed.py --check  # exit with 1 if the picture differs from the table
"""

from __future__ import annotations

from pictures import ROOT, box, settle, svg, text

# The beginning of a row in the table -> its name in the chart.
BARS = {
    "torch-dataloader-utils, this version": "torch-dataloader-utils",
    "petastorm": "petastorm, 2 workers",
    "Hugging Face datasets": "Hugging Face datasets",
}
SHARE = 3  # the column of the shares at B = 1,024
WIDTH, LEFT, TOP, BAR, STEP = 800.0, 200.0, 56.0, 26.0, 40.0
FULL = WIDTH - LEFT - 70  # width of a share of 1
STYLE = """
.ours { fill: #0f766e; } .peer { fill: #9aa5b1; } .limit { stroke: #616e7c; stroke-dasharray: 4 4; }
@media (prefers-color-scheme: dark) { .ours { fill: #2dd4bf; } .peer { fill: #616e7c; } .limit { stroke: #9aa5b1; } }
"""


def shares() -> list[float]:
    """The share of each of `BARS`, in order."""
    lines = (ROOT / "docs" / "benchmarks.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [next(float(row[SHARE]) for row in rows if row[0].startswith(name)) for name in BARS]


def bar(number: int, name: str, share: float) -> str:
    top, kind = TOP + number * STEP, "peer" if number else "ours"
    words = text(LEFT - 10, top + 18, name, "plain" if number else "strong", "end")
    return words + box(LEFT, top, share * FULL, BAR, kind) + text(LEFT + share * FULL + 8, top + 18, f"{share:.0%}")


def drawn() -> str:
    bottom, limit = TOP + len(BARS) * STEP, LEFT + FULL
    title = "Rows a second, as a share of a pyarrow scan that discards what it reads"
    parts = [
        text(10, 22, title, "strong"),
        f'<line class="limit" x1="{limit:.0f}" y1="{TOP - 8:.0f}" x2="{limit:.0f}" y2="{bottom:.0f}"/>',
        text(limit, TOP - 14, "the scan alone: 100%", "faint", "end"),
        *(bar(number, name, share) for number, (name, share) in enumerate(zip(BARS.values(), shares(), strict=True))),
        text(10, bottom + 16, "Parquet, 4 million rows of 42 columns, batches of 1,024 rows, 2 cores, no GPU", "faint"),
    ]
    return svg(WIDTH, bottom + 30, title, STYLE, parts)


settle("speed.svg", drawn())
