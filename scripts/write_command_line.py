"""Writes the reference of `tdu`, docs/command-line-reference.md, from the command's own help.

python scripts/write_command_line.py          # write
python scripts/write_command_line.py --check  # exit with 1 if the page would change
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from torch_dataloader_utils.cli.app import app

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "command-line-reference.md"


def spelled(param: Any) -> str:
    """The option with its short form and the name of its value."""
    names = ", ".join(f"`{name}`" for name in sorted(param.opts, key=len, reverse=True))
    value = "" if getattr(param, "is_flag", False) else f" {param.metavar}"
    return f"{names[:-1]}{value}`".replace("|", "\\|")


def row(param: Any) -> str:
    shown = param.show_default
    default = shown if isinstance(shown, str) else param.default
    stated = isinstance(shown, str) or (isinstance(default, (int, float)) and not isinstance(default, bool))
    return f"| {spelled(param)} | {param.help} | {f'`{default}`' if stated else ''} |"


def table(params: list[Any]) -> str:
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *map(row, params)])


def reference() -> str:
    """The page, as it follows from the commands."""
    group = typer.main.get_command(app)
    commands = group.commands
    panels: dict[str, list[Any]] = {}
    of_all = next(iter(commands.values())).params
    for param in of_all:
        if getattr(param, "rich_help_panel", None):
            panels.setdefault(param.rich_help_panel, []).append(param)
    parts = [
        "# Commands and their options",
        "What `tdu COMMAND --help` says, written by `scripts/write_command_line.py`; examples are on "
        "[Command line](command-line.md).",
        "`tdu --version` prints the version; `tdu --install-completion` installs shell completion.",
    ]
    for name, command in commands.items():
        own = [p for p in command.params if p.opts[0].startswith("-") and not getattr(p, "rich_help_panel", None)]
        own = [p for p in own if p.name != "help"]
        parts += [f"## tdu {name}", command.help, *([table(own)] if own else [])]
    parts.append("## Options of all commands")
    for panel, params in panels.items():
        parts += [f"**{panel}**", table(params)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    text, new = PAGE.read_text() if PAGE.exists() else "", reference()
    if "--check" in sys.argv and new != text:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not what tdu says: run python scripts/write_command_line.py")
    if new != text:
        PAGE.write_text(new)
        print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
