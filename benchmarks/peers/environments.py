"""An environment for each loader, made once: what one of them needs often excludes what another needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from contenders import Peer

_VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def interpreter(peer: Peer, folder: Path) -> str:
    """The Python of the peer's environment, which is made if it does not exist.

    Raises:
        subprocess.CalledProcessError: what it needs cannot be installed; stderr says why.
    """
    if not peer.requirements:
        return sys.executable
    wanted = [*peer.requirements, *peer.alone]
    home = folder / peer.name
    python = str(home / "bin" / "python")
    done = home / "requirements.json"
    if not done.exists() or json.loads(done.read_text()) != wanted:
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        _run([python, "-m", "pip", "install", "-q", *peer.requirements])
        if peer.alone:
            _run([python, "-m", "pip", "install", "-q", "--no-deps", *peer.alone])
        done.write_text(json.dumps(wanted))
    return python


def version(peer: Peer, python: str) -> str:
    """The version of what was installed for the peer; "" for this repository."""
    if not peer.requirements:
        return ""
    name = (*peer.alone, *peer.requirements)[0].partition("=")[0].partition("[")[0]
    return _run([python, "-c", _VERSION, name]).strip()


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
