"""Draws docs/images/steps.svg from the tables of docs/steps.md: the steps of a row, with the options that act there.

python scripts/draw_steps.py          # draw
python scripts/draw_steps.py --check  # exit with 1 if the picture differs from the page

tests/end_to_end/test_steps.py compares the page with the code.
"""

from __future__ import annotations

import re
from textwrap import wrap
from typing import NamedTuple

from pictures import ROOT, box, settle, svg, text

# Narrow, so that a phone shows it without shrinking its text much.
WIDTH, MARGIN, NAME, LETTERS = 460.0, 10.0, 116.0, 44
HEAD, LINE, PAD, GAP = 30.0, 17.0, 11.0, 20.0
STYLE = """
text.small { font-size: 12px; } .step { fill: #ffffff; stroke: #0f766e; } .flow { stroke: #0f766e; stroke-width: 2; }
.tip { fill: #0f766e; }
@media (prefers-color-scheme: dark) {
  .step { fill: #14181c; stroke: #2dd4bf; } .flow { stroke: #2dd4bf; } .tip { fill: #2dd4bf; }
}
"""


class Step(NamedTuple):
    """A step, and the options that act there."""

    name: str
    options: list[str]


def sections(page: str) -> list[tuple[str, list[Step]]]:
    """The titles of the page's sections that have a table of steps, with these steps."""
    found = []
    for section in page.split("\n## ")[1:]:
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"]
        steps = [Step(name, re.findall(r"`(\w+)", options)) for name, _, options in cells[2:]]
        if steps:
            found.append((section.partition("\n")[0], steps))
    return found


def arrow(top: float, bottom: float) -> list[str]:
    """From the box that ends at `top` to the one that begins at `bottom`."""
    x = MARGIN + 10 + NAME / 2
    line = f'<line class="flow" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom - 5:.1f}"/>'
    return [line, f'<path class="tip" d="M{x - 4:.1f} {bottom - 6:.1f} h8 l-4 6 z"/>']


def drawn(page: str) -> str:
    panels, steps = [], []
    top, last = MARGIN, None
    for title, listed in sections(page):
        begin, top = top, top + HEAD
        steps.append(text(MARGIN + 22 + NAME, begin + 20, title, "strong"))
        for name, options in listed:
            lines = wrap(", ".join(options), LETTERS)
            height = 2 * PAD + LINE * max(len(lines), 1)
            if last is not None:
                steps += arrow(last, top)
            steps += [
                box(MARGIN + 10, top, NAME, height, "step"),
                text(MARGIN + 10 + NAME / 2, top + height / 2 + 5, name, "strong", "middle"),
                *(
                    text(MARGIN + 22 + NAME, top + PAD + LINE * row + 13, words, "small")
                    for row, words in enumerate(lines)
                ),
            ]
            last = top + height
            top = last + GAP - 6
        panels.append(box(MARGIN, begin, WIDTH - 2 * MARGIN, last - begin + 10, "panel"))
        top = last + 10 + GAP
    title = "The steps of a row from its file to a batch, in order, each with the options that act there"
    return svg(WIDTH, top - GAP + MARGIN, title, STYLE, panels + steps, fixed=True)


settle("steps.svg", drawn((ROOT / "docs" / "steps.md").read_text()))
