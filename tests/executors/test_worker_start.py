"""How worker processes start: what they import, and when they import the user's script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.executors import helpers
from torch_dataloader_utils.executors.processes import _PRELOAD, start_context
from torch_dataloader_utils.executors.script import WORKER_NAME, deferred, worker_name

ROOT = Path(__file__).parents[2]
TOP = """
import sys
import torch
import numpy as np
import pyarrow as pa
from tests.executors import helpers
from torch_dataloader_utils import Processes, StructuredDataset

torch_of_main = torch.__name__

def worker_has_torch_and_script(batch):
    seen = float("torch" in sys.modules) + 2 * float(torch_of_main == "torch")
    return batch.set_column(1, "x", pa.array(np.full(batch.num_rows, seen, np.float32)))

class Scale:
    def __init__(self, by):
        self.by = by
    def __call__(self, batch):
        return batch.set_column(1, "x", pa.array(np.full(batch.num_rows, self.by, np.float32)))

def seen(path, transform, context):
    options = dict(num_workers=1, worker_mode=Processes(context=context), transform=transform)
    loader, dataset = StructuredDataset.create_dataloader(path, batch_size=500, columns=["id", "x"], **options)
    values = sorted({value for batch in loader for value in batch["x"].tolist()})
    dataset.close()
    return values
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data")
    helpers.write_table(path, files=1, groups=2)
    return str(path)


def run(tmp_path: Path, body: str, *, module: bool = False) -> subprocess.CompletedProcess[str]:
    """The script, run by its path or as a module."""
    (tmp_path / "script.py").write_text(TOP + body)
    command = [sys.executable, *(["-m", "script"] if module else [str(tmp_path / "script.py")])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("context", "module"), [(None, False), ("spawn", True)], ids=["by path", "as a module"])
def test_workers_import_the_script_only_if_what_they_receive_names_it(
    folder: str, tmp_path: Path, context: str | None, module: bool
) -> None:
    body = f"""
if __name__ == "__main__":
    print(seen({folder!r}, helpers.modules_without_torch, {context!r}))
    print(seen({folder!r}, worker_has_torch_and_script, {context!r}))
    print(seen({folder!r}, Scale(7), {context!r}))
"""
    done = run(tmp_path, body, module=module)
    assert (done.stdout, done.stderr) == ("[0.0]\n[3.0]\n[7.0]\n", "")


def test_a_script_without_a_main_guard_works_if_workers_need_nothing_of_it(folder: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"print(seen({folder!r}, helpers.modules_without_torch, None))\n")
    assert (done.stdout, done.stderr) == ("[0.0]\n", "")


def test_a_function_that_the_script_defines_only_as_main_is_an_error_that_says_so(folder: str, tmp_path: Path) -> None:
    body = f"""
if __name__ == "__main__":
    def same(batch):
        return batch
    seen({folder!r}, same, None)
"""
    done = run(tmp_path, body)
    assert "Can't get attribute 'same'" in done.stderr
    assert "Move a function that they cannot import" in done.stderr.rsplit("WorkerError", 1)[1]


def test_a_context_of_another_library_imports_the_script_as_it_does(folder: str, tmp_path: Path) -> None:
    body = f"""
import multiprocessing.context
class Other(multiprocessing.context.SpawnContext):
    pass
if __name__ == "__main__":
    print(seen({folder!r}, helpers.modules_without_torch, Other()))
    print(seen({folder!r}, Scale(7), Other()))
"""
    done = run(tmp_path, body)
    assert (done.stdout, done.stderr) == ("[1.0]\n[7.0]\n", "")


def test_only_processes_that_would_import_the_script_defer_it() -> None:
    main = sys.modules["__main__"]
    script = main.__spec__ is None and hasattr(main, "__file__")  # not so for `python -m` and `python -c`
    names = {method: worker_name(start_context(method)) for method in ("fork", "forkserver", "spawn")}
    assert {method: deferred(name) for method, name in names.items()} == {
        "fork": False,
        "forkserver": script,
        "spawn": script,
    }
    assert set(names.values()) == {WORKER_NAME}


def test_a_worker_s_name_unpickles_as_text_without_this_package() -> None:
    program = "import sys; sys.argv[0] = ''; import pickle\n"
    program += "name = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
    program += (
        "print(type(name).__name__, name, sys.modules['__main__'].__file__, 'torch_dataloader_utils' in sys.modules)"
    )
    make = (
        "import multiprocessing, pickle, sys\n"
        "from torch_dataloader_utils.executors.script import worker_name\n"
        "sys.modules['__main__'].__file__ = '/a/script.py'\n"
        "print(pickle.dumps(worker_name(multiprocessing.get_context('spawn'))).hex())"
    )
    packed = subprocess.run([sys.executable, "-c", make], capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run([sys.executable, "-c", program, packed], capture_output=True, text=True, check=True)
    assert done.stdout == f"str {WORKER_NAME} /a/script.py False\n"


def test_the_fork_server_has_what_workers_import_for_parquet_and_no_torch() -> None:
    wanted = "torch_dataloader_utils.formats.parquet"
    program = (
        f"import sys\nfor name in {_PRELOAD}: __import__(name)\n"
        f"print({wanted!r} in sys.modules, 'torch' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True False False\n"
