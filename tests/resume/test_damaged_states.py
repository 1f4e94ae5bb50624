"""Damaged states are refused at once and in little memory, or resume as the intact ones do."""

from __future__ import annotations

import contextlib
import copy
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.resume.helpers import KEPT, batches, make, through_json, write_files
from torch_dataloader_utils import CheckpointMismatchError, merge_state_dicts
from torch_dataloader_utils.checkpoint.form import SEAL, sealed
from torch_dataloader_utils.errors import DataLoaderUtilsError

NESTED: Any = []
for _ in range(100_000):
    NESTED = [NESTED]
ODD = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2,
        2**31,
        2**40,
        10**30,
        10**5_000,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\ud800",
        "7" * 99,
    ),
    *(b"pickle\x80", [], {}, [[]], {"": {}}, [0] * 9, NESTED, object(), lambda: None),
)
LIKE = {"num_workers": 2, "shuffle": True}
KINDS: dict[str, dict[str, Any]] = {
    "counted": LIKE,
    "windows": {**LIKE, "shuffle_buffer_size": 8},
    "filtered": {**LIKE, "filters": KEPT},
    "canonical": {"canonical_ranks": 4, "batch_size": 4},
    "resumed": {"num_workers": 3},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def saved(folder: str) -> dict[str, tuple[Any, Any, list[Any]]]:
    """For each kind: a loader, a state in the middle of its epoch, and the batches that follow."""
    made = {}
    for kind, options in KINDS.items():
        loader = make(folder, **options)
        if kind == "resumed":  # a second phase of the epoch
            loader.load_state_dict(state_after(make(folder), 4))
        state = state_after(loader, 2)
        loader.load_state_dict(state)
        made[kind] = loader, state, batches(loader)
    return made


def state_after(loader: Any, steps: int) -> Any:
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    return through_json(loader.state_dict())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def damaged(state: Any, chance: random.Random) -> Any:
    """The state with one value lost, repeated, replaced or changed."""
    state = copy.deepcopy(state)
    *path, last = chance.choice(list(places(state)))
    holder = state
    for key in path:
        holder = holder[key]
    kind, value = chance.choice(["lose", "odd", "odd", "odd", "change", "change"]), holder[last]
    if kind == "lose":
        del holder[last]
    elif kind == "odd":
        holder[last] = chance.choice(ODD)
    elif isinstance(value, bool):
        holder[last] = not value
    elif isinstance(value, int):
        holder[last] = value + chance.choice([-3, -1, 1, 1000, 2**20])
    elif isinstance(value, str):
        holder[last] = value[:-1] + chance.choice("0f\0")
    elif isinstance(value, list):
        holder[last] = chance.choice([value[:-1], [*value, *value[-1:]], value[::-1]])
    elif isinstance(holder, dict):
        holder[chance.choice([0, "more", None])] = holder.pop(last)
    return state


def resumed(loader: Any, state: Any, strict: bool) -> list[Any] | None:
    """The batches after loading; None if this package refused the state."""
    try:
        loader.load_state_dict(state, strict=strict)
    except DataLoaderUtilsError:
        return None
    return batches(loader)


@seed(28)
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.randoms(use_true_random=False), st.sampled_from(list(KINDS)), st.booleans())
def test_a_damaged_state_is_refused_or_resumes_as_the_intact_one(
    saved: Any, chance: random.Random, kind: str, strict: bool
) -> None:
    loader, state, rest = saved[kind]
    found = resumed(loader, damaged(state, chance), strict)
    assert found is None or found == rest


@seed(28)
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.randoms(use_true_random=False), st.sampled_from(list(KINDS)), st.booleans())
def test_a_state_whose_digest_was_made_up_raises_only_our_errors(
    saved: Any, chance: random.Random, kind: str, strict: bool
) -> None:
    loader, state, _ = saved[kind]
    with contextlib.suppress(DataLoaderUtilsError):  # also while the rest is planned
        resumed(loader, sealed(damaged(state, chance)), strict)


@pytest.mark.parametrize("name", ["num_shards", "num_ranks", "canonical_ranks", "batches", "turn"])
@pytest.mark.parametrize("made_up", [False, True])
def test_huge_numbers_are_refused_without_memory(folder: str, name: str, made_up: bool) -> None:
    loader = make(folder, filters=KEPT)
    state = state_after(loader, 2)
    (link,) = state["links"]
    if name == "batches":
        link["batches"] = 2**70
    elif name == "turn":
        link["cursors"]["0"][0] = 10**9
    else:
        link["options"][name] = 10**9
    state = sealed(state) if made_up else state
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointMismatchError, match="damaged"):
            loader.load_state_dict(state, strict=False)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("state", [b"gASVIA", "eyJ2ZXJzaW9uIjog", [], 0, float("nan"), NESTED, {}, {"links": NESTED}])
def test_what_is_no_dict_of_a_state_is_refused(folder: str, state: Any) -> None:
    for refuse in (
        make(folder).load_state_dict,
        make(folder).dataset._passes.codec.position,
        lambda it: merge_state_dicts([it]),
    ):
        with pytest.raises(CheckpointMismatchError, match=r"expected the result of loader\.state_dict\(\)"):
            refuse(state)


def test_a_changed_state_is_named_as_damaged(folder: str) -> None:
    """A number that could be one of another moment: nothing but the digest shows it."""
    loader = make(folder)
    state = state_after(loader, 2)
    state["links"][0]["batches"] = 3
    for strict in (True, False):
        with pytest.raises(CheckpointMismatchError, match="do not match their digest"):
            loader.load_state_dict(state, strict=strict)
    with pytest.raises(CheckpointMismatchError, match="do not match their digest"):
        merge_state_dicts([state])


def test_states_without_a_digest_are_read(folder: str) -> None:
    """Those that were written before there was one."""
    loader = make(folder)
    rest = batches(loader)[2:]
    loader.set_epoch(0)
    state = state_after(loader, 2)
    del state[SEAL]
    loader.load_state_dict(state)
    assert batches(loader) == rest


def test_a_cursor_beyond_the_blocks_of_its_plan_is_refused(folder: str) -> None:
    """Packing, which the state says there was, makes few blocks of many."""
    loader = make(folder, filters=KEPT, num_workers=2)
    state = state_after(loader, 4)
    del state[SEAL]
    state["links"][0]["options"]["pack_rows"] = 4096
    other = make(folder, filters=KEPT, num_workers=3)

    def resume() -> None:
        other.load_state_dict(state, strict=False)
        batches(other)

    with pytest.raises(CheckpointMismatchError, match=r"damaged: a worker has read \d+ blocks, but its plan has 1"):
        resume()


def test_states_of_merged_ranks_carry_a_digest(folder: str) -> None:
    states = [state_after(make(folder, num_ranks=2, rank=rank, filters=KEPT), 1 + rank) for rank in range(2)]
    merged = merge_state_dicts(states)
    assert sealed(merged) == merged
    changed = through_json(merged)
    changed["links"][0]["batches"] = [1, 1]
    with pytest.raises(CheckpointMismatchError, match="do not match their digest"):
        make(folder, num_ranks=2, rank=0, filters=KEPT).load_state_dict(changed)


def test_the_loader_is_unchanged_by_a_refused_state(folder: str, tmp_path: Path) -> None:
    loader = make(folder)
    iterator = iter(loader)
    next(iterator)
    before = loader.state_dict()
    with pytest.raises(CheckpointMismatchError):
        loader.load_state_dict({**before, "links": []})
    assert loader.state_dict() == before
    next(iterator)


def test_a_state_of_the_first_release_names_that_and_its_epoch(folder: str) -> None:
    loader = make(folder)
    state = {"epoch": 3, "_num_workers": 1, "_shuffle_seed": 42, "completed_shards": []}
    with pytest.raises(CheckpointMismatchError, match=r"release 0\.2\.0.* dataset\.set_epoch\(3\)"):
        loader.load_state_dict(state)
    loader.dataset.set_epoch(3)
    assert batches(loader)
