"""The package talks to no server of its own accord: not at import, not for local files."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# Refuses every attempt, also of pyarrow's or boto's kind that would look for credentials on the network.
RECORDS = """
import sys
attempts = []
def note(event, args):
    if event.startswith("socket.") and event not in ("socket.__new__", "socket.bind", "socket.gethostname"):
        if event == "socket.connect" and not isinstance(args[1], tuple):
            return  # within the machine, such as the fork server's
        attempts.append((event, args))
        raise OSError(f"no network: {event}")
sys.addaudithook(note)
"""
IMPORTS = """
import importlib, pkgutil
import torch_dataloader_utils as package
for name in package.__all__:
    getattr(package, name)
for module in pkgutil.walk_packages(package.__path__, "torch_dataloader_utils."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            assert not (error.name or "").startswith("torch_dataloader_utils"), error
"""
READS = """
from torch_dataloader_utils import StructuredDataset
for options in ({}, {"num_workers": 2}, {"shuffle": True, "num_workers": 0}):
    loader, dataset = StructuredDataset.create_dataloader(sys.argv[1], **options)
    assert sum(len(batch["a"]) for batch in loader) == 99
    str(dataset.describe())
"""
HELP = """
from typer.testing import CliRunner
from torch_dataloader_utils.cli.app import app
for arguments in (["--help"], ["describe", "--help"], ["schema", sys.argv[1]]):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
"""


@pytest.mark.parametrize("script", [IMPORTS, READS, HELP], ids=["imports", "local-files", "command"])
def test_no_server_is_asked(script: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(99)}), tmp_path / "a.parquet")
    code = f"{RECORDS}{script}\nassert not attempts, attempts\n"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_attempt_would_be_seen(tmp_path: Path) -> None:
    code = f"{RECORDS}\nimport urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "no network: socket." in done.stderr
