"""With few open files allowed, a pass delivers every row or ends with an error that says what to raise."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.servers import http_files
from torch_dataloader_utils.file_limit import too_many_files
from torch_dataloader_utils.storage import Naming

FILES, ROWS = 60, 50
CHILD = """
import json, os, resource, sys
from torch_dataloader_utils import DataLoaderUtilsError, Processes, StructuredDataset

def outcome(path, options, limit):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        loader, _ = StructuredDataset.create_dataloader(path, batch_size=64, num_ranks=1, rank=0, **options)
        return sum(len(batch["x"]) for batch in loader)
    except DataLoaderUtilsError as error:
        return f"ours: {error}"
    except BaseException as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

if __name__ == "__main__":
    paths, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    results = []
    for limit in ("64", "few"):
        used = max(map(int, os.listdir("/proc/self/fd")))
        results.append(outcome(paths, options, 64 if limit == "64" else used + 4))
    print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limited") / "data"
    folder.mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"x": range(number * ROWS, (number + 1) * ROWS)}), folder / f"{number:02}.parquet")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with http_files(tmp_path_factory.mktemp("server")) as store:
        store.put(folder, "data")
        yield store.url("data/")


@pytest.mark.parametrize(
    ("options", "remote"),
    [
        ({"num_workers": 0}, False),
        ({"num_workers": 4, "shuffle": True}, False),
        ({"num_workers": 4, "worker_mode": "processes"}, False),
        ({"num_workers": 4}, True),
    ],
)
def test_every_row_or_an_error_that_says_what_to_raise(
    options: dict[str, object], remote: bool, folder: Path, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue("served") if remote else str(folder)
    command = [sys.executable, "-c", CHILD, json.dumps(path), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    enough, few = json.loads(done.stdout)
    for result in (enough, few):
        assert result == FILES * ROWS or (result.startswith("ours: ") and "`ulimit -n 65536`" in result), result


def test_the_error_of_a_file_says_how_many_may_be_open() -> None:
    with (
        pytest.raises(OSError, match=r"Too many files are open \(this process may open \d+\): raise the limit"),
        Naming("x"),
    ):
        raise OSError(errno.EMFILE, "Too many open files")


def test_causes_are_looked_at_too() -> None:
    error = RuntimeError("failed")
    error.__cause__ = OSError(errno.ENFILE, "Too many open files in system")
    assert too_many_files(error)
    assert not too_many_files(OSError(errno.ENOENT, "No such file"))
    error.__cause__ = error
    assert not too_many_files(error)


WORKERS = """
import json, os, resource, sys
from torch_dataloader_utils import DataLoaderUtilsError, Processes, StructuredDataset

def outcome(path, few):
    loader, dataset = StructuredDataset.create_dataloader(
        path, batch_size=64, num_ranks=1, rank=0, num_workers=4, worker_mode=Processes(context="fork")
    )
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + few, before[1]))
        return sum(len(batch["x"]) for batch in loader)
    except DataLoaderUtilsError as error:
        return f"ours: {error}"
    except BaseException as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        dataset.close()

if __name__ == "__main__":
    print(json.dumps([outcome(sys.argv[1], few) for few in range(8, 100, 3)]))
"""


def test_each_limit_that_worker_processes_meet_is_named(folder: Path) -> None:
    """Descriptors of their memory arrive with messages; the system leaves out, in silence, those beyond the limit."""
    command = [sys.executable, "-c", WORKERS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes[-1] == FILES * ROWS
    wrong = [each for each in outcomes if each != FILES * ROWS]
    assert any("items of ancdata" in each for each in wrong)
    assert all(each.startswith("ours: ") and "ulimit -n" in each for each in wrong), wrong
