"""A state of any step continues with exactly the batches that were left: bit for bit, and the next epoch too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.covering import covering
from tests.resume.helpers import KEPT, batches, make, pass_with_states, write_files
from torch_dataloader_utils import Processes, Rotate, Shuffle, Strided
from torch_dataloader_utils.typing import Value

POLICIES: dict[str, dict[str, Any]] = {
    "interleave": {},
    "contiguous": {"sharding": "contiguous"},
    "rotate": {"sharding": "rotate"},
    "stick": {"sharding": Rotate(stick_to_shard=True)},
    "total shards": {"sharding": Rotate(4, full_rotation=True)},
    "strided": {"sharding": "strided"},
    "shard batches": {"sharding": Strided("batch")},
    "split batches": {"sharding": Strided("split_batch"), "batch_size": 4},
    "auto": {"sharding": "auto"},
}
ENDS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "even drop": {"even": "drop"},
    "even pad": {"even": "pad"},
    "steps": {"steps_per_epoch": 11},
    "last drop": {"last_batch": "drop"},
    "last pad": {"last_batch": "pad"},
    "last wrap": {"last_batch": "wrap"},
}
ROWS: dict[str, dict[str, Any]] = {
    "all": {},
    "counted filter": {"filters": KEPT, "count_rows": True},
    "filter": {"filters": KEPT},
    "pruned": {"filters": [("id", ">", 12)]},
}
ORDERS: dict[str, dict[str, Any]] = {
    "file order": {},
    "splits shuffled": {"shuffle": "splits"},
    "shuffled": {"shuffle": Shuffle(window_bytes=150)},  # some windows
    "all splits open": {"shuffle": Shuffle("all", window_bytes=150)},
    "rows shuffled": {"shuffle": Shuffle(window_rows=10, open_splits=2)},
    "rows in file order shuffled": {"shuffle": Shuffle("nearby", window_rows=7, open_splits=3)},
}
DRIVERS: dict[str, dict[str, Any]] = {
    "in-line": {"num_workers": 0},
    "threads": {"num_workers": 3},
    "pool": {"num_workers": None},
    "on a device": {"num_workers": 2, "device": "cpu"},  # copied two batches ahead
    "processes": {"num_workers": 2, "worker_mode": Processes(context="fork")},
}


def possible(driver: str, order: str, policy: str, end: str, rows: str) -> bool:
    """Whether such a plan can be made: some need counts that a filter takes away."""
    unknown = rows in ("filter", "pruned")
    return not (unknown and end in ("even drop", "even pad", "last wrap"))


def options_of(driver: str, order: str, policy: str, end: str, rows: str) -> dict[str, Any]:
    return DRIVERS[driver] | ORDERS[order] | POLICIES[policy] | ENDS[end] | ROWS[rows] | {"num_ranks": 2, "rank": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


def check_every_step(folder: str, options: dict[str, Any]) -> None:
    """Continue from each step, all by one loader, and some by loaders of their own."""
    loader = make(folder, **options)
    loader.dataset.set_epoch(1)
    whole, states = pass_with_states(loader)
    following = batches(loader)
    assert whole
    assert (states[0]["epoch"], states[0]["links"][-1]["batches"]) == (1, 0)
    again = make(folder, **options)
    for step, state in enumerate(states):
        again.load_state_dict(state)
        rest, rest_states = pass_with_states(again)
        assert rest == whole[step:]
        assert [state_of(s) for s in rest_states] == [state_of(s) for s in states[step:]]
        if step in (0, 1, len(whole) // 2, len(whole)):
            assert batches(again) == following
    loader.dataset.close()
    again.dataset.close()


def state_of(state: dict[str, Any]) -> Any:
    """What must be the same however a step was reached."""
    link = state["links"][-1]
    return state["epoch"], state["links"][:-1], link["options"], link["batches"], state["skip"]


PAIRS = [
    pytest.param(case, marks=[pytest.mark.slow] if case[0] == "processes" else [], id=", ".join(case))
    for case in covering([*DRIVERS], [*ORDERS], [*POLICIES], [*ENDS], [*ROWS], allowed=possible)
]
TRIPLES = covering([*DRIVERS], [*ORDERS], [*POLICIES], [*ENDS], [*ROWS], strength=3, allowed=possible)


@pytest.mark.parametrize("case", PAIRS)
def test_every_step(folder: str, case: tuple[str, ...]) -> None:
    check_every_step(folder, options_of(*case))


@pytest.mark.nightly
@pytest.mark.parametrize("case", TRIPLES, ids=", ".join)
def test_every_step_of_every_three_options(folder: str, case: tuple[str, ...]) -> None:
    check_every_step(folder, options_of(*case))


@pytest.mark.parametrize(
    ("order", "policy", "end", "rows"),
    [
        ("shuffled", "interleave", "as it is", "filter"),
        ("rows shuffled", "strided", "steps", "all"),
        ("shuffled", "strided", "steps", "all"),  # workers begin in different laps
        ("shuffled", "strided", "steps", "filter"),
    ],
)
def test_every_step_in_processes(folder: str, order: str, policy: str, end: str, rows: str) -> None:
    check_every_step(folder, options_of("processes", order, policy, end, rows))


IN_A_NEW_PROCESS = """
import json, sys
from tests.resume.helpers import batches, make
if __name__ == "__main__":
    folder, resumes = json.loads(sys.argv[1])
    passes = {}
    for driver, (options, state) in resumes.items():
        loader = make(folder, **options)
        loader.load_state_dict(state)
        passes[driver] = [batches(loader), batches(loader)]
        loader.dataset.close()
    print(json.dumps(passes))
"""


def test_in_a_new_process(folder: str, tmp_path: Path) -> None:
    resumes, expected = {}, {}
    for driver in DRIVERS:
        options = DRIVERS[driver] | {"shuffle": True, "filters": [("id", ">", 12)], "num_ranks": 2, "rank": 1}
        loader = make(folder, **options)
        whole, states = pass_with_states(loader)
        step = len(whole) // 2
        resumes[driver] = [options, states[step]]
        expected[driver] = [whole[step:], batches(loader)]
        loader.dataset.close()
    script = tmp_path / "resumed.py"
    script.write_text(IN_A_NEW_PROCESS)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script), json.dumps([folder, resumes], default=Value.to_dict)],
        capture_output=True, text=True, timeout=120, cwd=root, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
