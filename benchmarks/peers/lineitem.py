"""TPC-H's `lineitem`, six million rows of numbers, decimals, dates and short texts, written by tpchgen."""

from __future__ import annotations

import subprocess
from pathlib import Path

from contenders import Peer
from environments import interpreter

GENERATOR = Peer("tpchgen", "tpchgen", ("tpchgen-cli==4.0.0",))


def write_lineitem(folder: Path, environments: Path) -> Path:
    """The folder of the table's four Parquet files; written unless it exists."""
    target = folder / "lineitem"
    if not target.exists():
        program = Path(interpreter(GENERATOR, environments)).with_name("tpchgen-cli")
        partial = target.with_suffix(".partial")
        options = ["--scale-factor=1", "--tables=lineitem", "--parts=4"]
        subprocess.run([program, "parquet", *options, f"--output-dir={partial}"], check=True, capture_output=True)
        target.mkdir()
        for number, file in enumerate(sorted(partial.rglob("*.parquet"))):
            file.rename(target / f"part-{number:02d}.parquet")
    return target
