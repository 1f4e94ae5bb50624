"""Writes constraints.txt: one version of every package that any extra installs, resolved together by pip.

Run by `make lock`. PINNED overrides what pip would choose.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINNED = [
    "torch==2.13.0",  # the same version everywhere; the index decides on the build (CPU or CUDA)
    "pymdown-extensions<13",  # later ones need Python 3.11.5: Debian 12 has 3.11.2
]
HEADER = """\
# One exact version of everything that any extra pulls, resolved together. Made by `make lock`; do not edit.
# Every install of the Makefile goes through `-c constraints.txt`; users get the ranges of pyproject.toml.
"""


def resolve(constraints: Path) -> dict[str, str]:
    """The version of each package that an install of all extras would add."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    target = f"{ROOT}[{','.join(extras)}]"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = subprocess.run([*pip, "-c", str(constraints), target], check=True, stdout=subprocess.PIPE).stdout
    found = [package["metadata"] for package in json.loads(report)["install"]]
    return {re.sub(r"[-_.]+", "-", item["name"]).lower(): item["version"] for item in found}


with tempfile.TemporaryDirectory() as folder:
    pins = Path(folder, "pins.txt")
    pins.write_text("\n".join(PINNED))
    versions = resolve(pins)
versions.pop("torch-dataloader-utils")
# A build tag such as +cpu belongs to one index; without it the line works with any index.
lines = [f"{name}=={version.partition('+')[0]}\n" for name, version in sorted(versions.items())]
(ROOT / "constraints.txt").write_text(HEADER + "".join(lines))
print(f"constraints.txt: {len(lines)} packages")
