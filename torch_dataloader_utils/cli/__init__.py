"""The command line: `tdu`, also `python -m torch_dataloader_utils`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

_NEEDED = ("typer", "rich", "yaml")


def main() -> None:
    """Run the command line; without its extra, say so in a line and exit with 2."""
    _open_closed_streams()
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(_without_extra(missing))
    from torch_dataloader_utils.cli.app import app

    app(prog_name="tdu")


def _open_closed_streams() -> None:
    """Open standard streams that are closed (`tdu ... >&-`), so that no file of the data gets their descriptors."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode))


def _without_extra(missing: list[str]) -> int:
    """The exit code, after a line on stderr."""
    print(  # noqa: T201 - what prints otherwise is what is missing
        f"tdu needs {' and '.join(missing)}: pip install 'torch-dataloader-utils[cli]'", file=sys.stderr
    )
    return 2
