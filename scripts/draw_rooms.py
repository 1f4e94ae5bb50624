"""Draws docs/images/rooms.svg from the code: the rooms of the package on their floors, and who imports whom.

    python scripts/draw_rooms.py          # draw
    python scripts/draw_rooms.py --check  # exit with 1 if the picture differs from the code

The rooms come from the import contract in pyproject.toml, and a room's text is the first line of its docstring.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from functools import cache
from html import escape

import grimp
from pictures import ROOT, settle

PACKAGE = "torch_dataloader_utils"
# The path of the data, from the user's options to a batch.
WAY = ("api", "loader", "iteration", "batching", "executors", "reading", "convert", "formats", "storage")

BOX_WIDTH, BOX_HEIGHT, FLOOR_HEIGHT, MARGIN, GAP = 226, 80, 116, 12, 24
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2933; } .name { font-weight: 600; font-size: 14px; }
.files { fill: #7b8794; }
rect { fill: #f5f7fa; stroke: #9aa5b1; rx: 6px; } .way rect { fill: #e0f2f1; stroke: #00796b; }
path { fill: none; stroke: #9aa5b1; stroke-width: 1.2; opacity: .75; } .way path { stroke: #00796b; stroke-width: 2.5; }
svg { background: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { background: #14181c; } text { fill: #e4e7eb; } .files { fill: #9aa5b1; }
  rect { fill: #1f2933; stroke: #616e7c; } .way rect { fill: #12403c; stroke: #4db6ac; } .way path { stroke: #4db6ac; }
}
"""

Place = tuple[float, float]  # the left and top edge of a box


def layers() -> list[str]:
    """The rooms, from the top of the contract to the bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [room.strip() for layer in found for room in layer.replace(":", "|").split("|")]


def floors(rooms: list[str], imports: set[tuple[str, str]]) -> list[list[str]]:
    """The rooms on each floor, from the top: each room is one floor above the highest room that it imports."""

    @cache
    def floor(room: str) -> int:
        return max((floor(other) + 1 for one, other in imports if one == room), default=0)

    return [[room for room in rooms if floor(room) == level] for level in range(max(map(floor, rooms)), -1, -1)]


def arrows(rooms: list[str]) -> set[tuple[str, str]]:
    """Which room imports which, without the pairs that follow from others."""
    # Without its cache, which knows files by the time of their last change: what git wrote back stays as it was.
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    direct = {
        (one, other)
        for one in rooms
        for other in rooms
        if one != other
        and graph.direct_import_exists(importer=f"{PACKAGE}.{one}", imported=f"{PACKAGE}.{other}", as_packages=True)
    }

    @cache
    def below(room: str) -> frozenset[str]:
        own = {other for one, other in direct if one == room}
        return frozenset(own.union(*(below(other) for other in own)))

    return {
        (one, other)
        for one, other in direct
        if not any(other in below(between) for through, between in direct if through == one and between != other)
    }


def purpose(room: str) -> tuple[str, int]:
    """The first line of a room's docstring, and its number of files."""
    folder = ROOT / PACKAGE / room
    init = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    said = (ast.get_docstring(ast.parse(init.read_text())) or "").splitlines()[0]
    files = [path for path in folder.rglob("*.py") if path.name != "__init__.py"] if folder.is_dir() else []
    return said.rstrip("."), len(files)


def places(levels: list[list[str]], imports: set[tuple[str, str]], width: int) -> dict[str, Place]:
    """The place of each room: below the rooms that import it, as far as its floor has space."""
    found: dict[str, Place] = {}
    step = BOX_WIDTH + GAP
    for floor, rooms in enumerate(levels):
        wanted = {}
        for room in rooms:
            above = [found[one][0] for one, other in imports if other == room]
            wanted[room] = sum(above) / len(above) if above else (width - BOX_WIDTH) / 2
        order = sorted(rooms, key=lambda room: wanted[room])
        lefts: list[float] = []
        for room in order:
            lefts.append(max([wanted[room], MARGIN, *(left + step for left in lefts[-1:])]))
        limit = width - MARGIN - BOX_WIDTH
        for number in reversed(range(len(order))):
            lefts[number], limit = min(lefts[number], limit), min(lefts[number], limit) - step
        for room, left in zip(order, lefts, strict=True):
            found[room] = left, MARGIN + floor * FLOOR_HEIGHT
    return found


def box(room: str, place: Place) -> str:
    left, top = place
    said, files = purpose(room)
    lines = textwrap.wrap(said, 34)[:4]
    count = f'<tspan class="files" font-weight="400" dx="6">{files} files</tspan>' if files else ""
    texts = [f'<text class="name" x="{left + 8:.0f}" y="{top + 18:.0f}">{room}{count}</text>']
    texts += [
        f'<text x="{left + 8:.0f}" y="{top + 33 + 14 * i:.0f}">{escape(line)}</text>' for i, line in enumerate(lines)
    ]
    shape = f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>'
    return f'<g class="{"way" if room in WAY else "room"}">{shape}{"".join(texts)}</g>'


def arrow(one: str, other: str, where: dict[str, Place]) -> str:
    (left, top), (other_left, other_top) = where[one], where[other]
    x, y, to_x, to_y = left + BOX_WIDTH / 2, top + BOX_HEIGHT, other_left + BOX_WIDTH / 2, other_top
    bend = (to_y - y) / 2
    curve = f"M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
    way = one in WAY and other in WAY
    return f'<g class="{"way" if way else "room"}"><path d="{curve}"/></g>'


def drawn() -> str:
    rooms = layers()
    imports = arrows(rooms)
    levels = floors(rooms, imports)
    width = 2 * MARGIN - GAP + max(map(len, levels)) * (BOX_WIDTH + GAP)
    where = places(levels, imports, width)
    height = 2 * MARGIN + FLOOR_HEIGHT * len(levels) - (FLOOR_HEIGHT - BOX_HEIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>The rooms of the package: each imports only from floors below it</title>",
        f"<style>{STYLE}</style>",
        *(arrow(one, other, where) for one, other in sorted(imports)),
        *(box(room, where[room]) for room in rooms),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


settle("rooms.svg", drawn())
