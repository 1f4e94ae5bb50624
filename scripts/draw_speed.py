"""Draws docs/images/speed.svg: four bars from benchmarks/race.json.

python scripts/draw_speed.py          # draw
python scripts/draw_speed.py --check  # exit with 1 if the picture differs from the figures
"""

from __future__ import annotations

import json

from pictures import ROOT, box, settle, svg, text

# A loader of the race -> its name in the chart.
BARS = {
    "ours": "torch-dataloader-utils",
    "petastorm": "petastorm",
    "polars_scan": "Polars",
    "hf_batched": "Hugging Face datasets",
}
CASE = ["wide", 1024, 0, False]
WIDTH, LEFT, TOP, BAR, STEP = 800.0, 200.0, 56.0, 26.0, 40.0
FULL = WIDTH - LEFT - 70  # width of the fastest
STYLE = """
.ours { fill: #0f766e; } .peer { fill: #9aa5b1; } .limit { stroke: #616e7c; stroke-dasharray: 4 4; }
@media (prefers-color-scheme: dark) { .ours { fill: #2dd4bf; } .peer { fill: #616e7c; } .limit { stroke: #9aa5b1; } }
"""


def bar(number: int, name: str, rate: float, most: float) -> str:
    top, kind, width = TOP + number * STEP, "peer" if number else "ours", rate / most * FULL
    words = text(LEFT - 10, top + 18, name, "plain" if number else "strong", "end")
    return words + box(LEFT, top, width, BAR, kind) + text(LEFT + width + 8, top + 18, f"{rate / 1e6:.1f}")


def drawn() -> str:
    figures = json.loads((ROOT / "benchmarks" / "race.json").read_text())["cases"][json.dumps(CASE)]
    rates, limit = [figures[name]["rate"] for name in BARS], figures["limit"]["rate"]
    bottom, most = TOP + len(BARS) * STEP, max(*rates, limit)
    at = LEFT + limit / most * FULL
    title = "Million rows a second"
    parts = [
        text(10, 22, title, "strong"),
        *(bar(number, name, rates[number], most) for number, name in enumerate(BARS.values())),
        f'<line class="limit" x1="{at:.0f}" y1="{TOP - 8:.0f}" x2="{at:.0f}" y2="{bottom:.0f}"/>',
        text(at, TOP - 14, f"decoding whole row groups with pyarrow: {limit / 1e6:.1f}", "faint", "end"),
        text(10, bottom + 16, "Parquet, 4 million rows of 42 columns, batches of 1,024 rows, 2 cores, no GPU", "faint"),
    ]
    return svg(WIDTH, bottom + 30, title, STYLE, parts)


settle("speed.svg", drawn())
