"""The command line: `tdu`, also `python -m torch_dataloader_utils`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("typer", "rich", "yaml")


def main() -> None:
    """Run the command line; without its extra, say so in a line and exit with 2."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(_without_extra(missing))
    from torch_dataloader_utils.cli.app import app

    app(prog_name="tdu")


def _without_extra(missing: list[str]) -> int:
    """The exit code, after a line on stderr."""
    print(  # noqa: T201 - what prints otherwise is what is missing
        f"tdu needs {' and '.join(missing)}: pip install 'torch-dataloader-utils[cli]'", file=sys.stderr
    )
    return 2
