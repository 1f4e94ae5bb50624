"""Spark and Ray run a fit over their tasks: the digest of one machine, or the example exits with an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers.conftest import EXAMPLES, SETTINGS
from tests.launchers.test_examples import needs


def digests(example: str, folder: Path) -> list[str]:
    """What an example of a fit prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # Spark starts the `python3` of the path
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "preprocess" / example)],
        cwd=folder,
        env={**os.environ, **SETTINGS, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return re.findall(r"^(?:Spark|Ray|one machine): .* 51,955 rows, digest (\w{32})>$", done.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.usefixtures("options")
@pytest.mark.parametrize("example", ["fit_on_spark.py", "fit_on_ray.py"])
def test_a_cluster_finds_what_one_machine_finds(example: str, tmp_path: Path) -> None:
    needs("pyspark" if "spark" in example else "ray")
    if "spark" in example and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("pyspark needs Java, and there is none")
    one, other = digests(example, tmp_path)
    assert one == other
