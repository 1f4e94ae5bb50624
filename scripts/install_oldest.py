"""Installs the package with the oldest versions that its dependencies may have, and what tests of pure rooms need.

    python scripts/install_oldest.py [--dry-run]

Extras are left out: some need newer versions of pyarrow than the package itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# pandas and Polars are what tests compare with, the others run them.
TESTS = (
    "hatch-fancy-pypi-readme",
    "hatchling",
    "hypothesis",
    "packaging",
    "pandas",
    "polars",
    "pytest",
    "pytest-xdist",
)


def oldest(requirement: str) -> str:
    """The requirement of the oldest version, as in "torch==2.4.*" for "torch>=2.4"."""
    found = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
    if found is None:
        raise ValueError(f"{requirement!r} in pyproject.toml: expected a name, >= and a version.")
    return f"{found[1]}=={found[2]}.*"


project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
wanted = [*map(oldest, project["dependencies"]), *TESTS]
print(*wanted)
if "--dry-run" not in sys.argv:
    subprocess.run([sys.executable, "-m", "pip", "install", "-e", str(ROOT), *wanted], check=True)
