"""Draws docs/images/soak.svg: what a process holds over many epochs, from benchmarks/soak.json.

python scripts/draw_soak.py          # draw
python scripts/draw_soak.py --check  # exit with 1 if the picture differs from the values
"""

from __future__ import annotations

import json

from pictures import ROOT, box, settle, svg, text

# The key of a value -> the title of its row.
VALUES = {
    "memory": "Memory, MiB (PSS, with workers)",
    "threads": "Threads",
    "descriptors": "Descriptors",
    "memfds": "memfds",
    "shared memory": "Entries of /dev/shm",
    "processes": "Processes",
}
MODES = {"threads": "Threads", "processes": "Worker processes"}
WIDTH, LEFT, TOP, PANEL, HEIGHT, STEP, GAP = 860.0, 50.0, 74.0, 370.0, 74.0, 108.0, 50.0
STYLE = """
polyline { fill: none; stroke-width: 1.8; } .quiet { stroke: #616e7c; } .faulty { stroke: #0f766e; }
text.small { font-size: 12px; }
@media (prefers-color-scheme: dark) { .quiet { stroke: #9aa5b1; } .faulty { stroke: #2dd4bf; } }
"""

Runs = dict[str, dict[str, list[float]]]


def line(values: list[float], left: float, top: float, most: float, kind: str) -> str:
    """A run's values over its epochs; the panel ends at `most`."""
    across = PANEL / max(1, len(values) - 1)
    points = " ".join(f"{left + at * across:.1f},{top + HEIGHT * (1 - v / most):.1f}" for at, v in enumerate(values))
    return f'<polyline class="{kind}" points="{points}"/>'


def panel(runs: Runs, mode: str, key: str, column: int, row: int) -> list[str]:
    """One value of one mode: the run without faults, and over it the one with faults."""
    left, top = LEFT + column * (PANEL + GAP), TOP + row * STEP
    quiet, faulty = runs[mode][key], runs[f"{mode}, with faults"][key]
    most = max(*quiet, *faulty, 1.0) * 1.15
    return [
        text(left, top - 8, VALUES[key], "small"),
        box(left, top, PANEL, HEIGHT, "panel"),
        text(left - 6, top + HEIGHT, "0", "faint small", "end"),
        text(left - 6, top + 10, f"{most:.0f}", "faint small", "end"),
        line(quiet, left, top, most, "quiet"),
        line(faulty, left, top, most, "faulty"),
    ]


def drawn() -> str:
    runs: Runs = json.loads((ROOT / "benchmarks" / "soak.json").read_text())
    epochs, bottom = len(runs["threads"]["memory"]), TOP + len(VALUES) * STEP - 16
    title = f"What a training process holds over {epochs} epochs"
    parts = [text(10, 24, title, "strong")]
    for place, (kind, words) in enumerate({"quiet": "without faults", "faulty": "7 of 8 epochs with a fault"}.items()):
        left = 470 + place * 150
        parts += [f'<polyline class="{kind}" points="{left},19 {left + 24},19"/>', text(left + 30, 24, words, "small")]
    for column, (mode, words) in enumerate(MODES.items()):
        parts.append(text(LEFT + column * (PANEL + GAP), 48, words, "strong"))
        for row, key in enumerate(VALUES):
            parts += panel(runs, mode, key, column, row)
    parts.append(text(LEFT, bottom + 8, "1", "faint small"))
    parts.append(text(LEFT + PANEL, bottom + 8, f"epoch {epochs}", "faint small", "end"))
    return svg(WIDTH, bottom + 22, title, STYLE, parts)


settle("soak.svg", drawn())
