"""Damaged pages by the million: none makes the page decoder touch memory that is not its own, or wait."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernels.pages import write_chunks

KERNELS = Path(__file__).parents[2] / "torch_dataloader_utils" / "kernels"
SECONDS = 60 if os.environ.get("CI") else 2
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-fno-strict-aliasing")


@pytest.mark.skipif(shutil.which("cc") is None or os.name != "posix", reason="there is no C compiler")
def test_damaged_pages_are_refused(tmp_path: Path) -> None:
    program = tmp_path / "fuzz"
    source = Path(__file__).with_name("fuzz_pages.c")
    command = ["cc", "-std=c99", *SANITIZED, "-I", str(KERNELS), "-o", str(program), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode and re.search("asan|ubsan|sanitize", built.stderr):
        pytest.skip("the C compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    seeds = write_chunks(tmp_path)
    done = subprocess.run(
        [program, str(SECONDS), "1", *seeds], capture_output=True, text=True, timeout=SECONDS + 60, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.match(r"(\d+) chunks, (\d+) whole, longest ([\d.]+) ms", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) > 1000 * SECONDS
    assert 0 < int(found[2]) < int(found[1])
