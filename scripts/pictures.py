"""Shared by the scripts that draw docs/images: colours for light and dark pages, and `--check`."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
# A picture has a background of its own, because a page may be dark while the reader's system is light.
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2933; } .strong { font-weight: 600; } .faint { fill: #616e7c; }
.panel { fill: #f5f7fa; stroke: #9aa5b1; rx: 6px; }
.over { paint-order: stroke; stroke: #f5f7fa; stroke-width: 4px; }
svg { background: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { background: #14181c; } text { fill: #e4e7eb; } .faint { fill: #9aa5b1; }
  .panel { fill: #1f2933; stroke: #616e7c; } .over { stroke: #1f2933; }
}
"""


def svg(width: float, height: float, title: str, style: str, parts: list[str], *, fixed: bool = False) -> str:
    """A picture of this size, with the colours above and those in `style`; as wide as the page unless it is fixed."""
    size = f'width="{width:.0f}" height="{height:.0f}" ' if fixed else ""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
    lines = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}{style}</style>", *parts, "</svg>"]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, kind: str = "plain", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def settle(name: str, picture: str) -> None:
    """Write the picture to docs/images; with `--check`, exit with 1 if the existing picture differs."""
    path, script = IMAGES / name, Path(sys.argv[0]).name
    if "--check" not in sys.argv:
        path.write_text(picture)
        print(path.relative_to(ROOT))
    elif not path.exists() or path.read_text() != picture:
        sys.exit(f"{path.relative_to(ROOT)} is out of date: run python scripts/{script}")
