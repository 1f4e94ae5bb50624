"""Faults of states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import rows
from tests.faults.table import fault
from torch_dataloader_utils.errors import CheckpointMismatchError

SECTION = "States"


def _loaded(folder: Path, change: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    """A call that loads the state of the middle of a pass after a change."""
    loader, _ = rows.create(rows.write_files(folder / "rows"))
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    change(state)

    def load() -> list[Any]:
        loader.load_state_dict(state)
        return list(loader)

    return load


@fault(
    SECTION,
    "A state with a missing key",
    CheckpointMismatchError,
    "tests/resume/test_state.py::test_a_damaged_state_is_refused",
)
def missing_key(folder: Path) -> Callable[[], object]:
    return _loaded(folder, lambda state: state.pop("epoch"))


@fault(
    SECTION,
    "A state whose values are of other types",
    CheckpointMismatchError,
    "tests/resume/test_damaged_states.py::test_a_changed_state_is_named_as_damaged",
)
def other_types(folder: Path) -> Callable[[], object]:
    return _loaded(folder, lambda state: state.update({key: [None] for key in state if key != "version"}))


@fault(
    SECTION,
    "A state that claims a thousand million shards",
    CheckpointMismatchError,
    "tests/resume/test_damaged_states.py::test_huge_numbers_are_refused_without_memory",
)
def huge(folder: Path) -> Callable[[], object]:
    def enlarge(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in ("num_shards", "num_ranks", "num_workers", "shards"):
                    value[key] = 10**9
                enlarge(inner)
        elif isinstance(value, list):
            for inner in value:
                enlarge(inner)

    return _loaded(folder, enlarge)


@fault(
    SECTION,
    "A state of other data",
    CheckpointMismatchError,
    "tests/resume/test_state.py::test_other_files_are_refused_unless_told_otherwise",
)
def other_data(folder: Path) -> Callable[[], object]:
    loader, _ = rows.create(rows.write_files(folder / "a", 3))
    state = loader.state_dict()
    other, _ = rows.create(rows.write_files(folder / "b", 4))
    return lambda: other.load_state_dict(state)
