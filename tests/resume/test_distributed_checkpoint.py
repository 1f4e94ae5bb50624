"""torch.distributed.checkpoint: it fills the keys of a new loader's state, so all states of a loader have the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

from tests.end_to_end.parts import Part
from tests.end_to_end.test_parts import PARTS, _small  # noqa: F401  # a fixture that every part needs
from tests.resume.helpers import KEPT, batches, make, plain, through_json, write_files
from torch_dataloader_utils import CheckpointMismatchError, Rotate, combine
from torch_dataloader_utils.checkpoint.form import sealed

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")  # a single process saves


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    return cache(lambda write: write(tmp_path_factory.mktemp(write.__name__)))


def check_each_step(new: Callable[[], Any], path: Path, epoch: int = 1, every: int = 3) -> None:
    """A loader that `dcp.load` fills continues where the one that `dcp.save` got was."""
    loader = new()
    loader.set_epoch(epoch)
    keys = {key for key, _ in leaves(loader.state_dict())}
    found, states = [], []
    iterator, step = iter(loader), 0
    while True:
        if step % every == 0:
            dcp.save({"loader": loader}, checkpoint_id=path / str(step))
            assert {key for key, _ in leaves(loader.state_dict())} == keys
            states.append(step)
        try:
            found.append(plain(next(iterator)))
        except StopIteration:
            break
        step += 1
    assert len(states) > 1
    for step in states:
        if step < len(found):
            resumed = new()
            dcp.load({"loader": resumed}, checkpoint_id=path / str(step))
            assert batches(resumed) == found[step:], step
            resumed.dataset.close()
    loader.dataset.close()


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The keys that torch.distributed.checkpoint saves."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}")]
    return [(path, value)]


@pytest.mark.parametrize(
    ("part", "workers"),
    [
        pytest.param(part, workers, id=f"{name}-W{workers}", marks=[pytest.mark.nightly] if (place + turn) % 2 else [])
        for place, (name, part) in enumerate(PARTS.items())
        for turn, workers in enumerate((0, 2))
    ],
)
def test_each_kind_of_loader(part: Part, workers: int, data_of: Callable[..., Any], tmp_path: Path) -> None:
    data = data_of(part.write)
    check_each_step(lambda: part.make(data, num_ranks=1, rank=0, num_workers=workers), tmp_path, part.epoch)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unknown": {"filters": KEPT},
    "two workers": {"num_workers": 2},
    "unknown, two workers": {"filters": KEPT, "num_workers": 2, "shuffle": True, "shuffle_buffer_size": 8},
    "sync": {"filters": KEPT, "even": "sync"},
    "steps": {"filters": KEPT, "steps_per_epoch": 17},
    "steps, two workers": {"filters": KEPT, "steps_per_epoch": 17, "num_workers": 2},
    "canonical": {"canonical_ranks": 3, "shuffle": True},
    "rotate": {"sharding": Rotate(2)},
    "padded": {"even": "pad", "last_batch": "pad"},
}


@pytest.mark.parametrize("options", [pytest.param(options, id=name) for name, options in KINDS.items()])
def test_each_kind_of_options(folder: str, options: dict[str, Any], tmp_path: Path) -> None:
    check_each_step(lambda: make(folder, **options), tmp_path, every=2)


def test_a_combination(folder: str, tmp_path: Path) -> None:
    def new() -> Any:
        parts = [make(folder, filters=filters).dataset for filters in (None, KEPT)]
        given = {"batch_size": 3, "num_ranks": 1, "rank": 0, "num_workers": 0, "shuffle": True}
        return combine(parts, batches="splits", **given)

    check_each_step(new, tmp_path)


@pytest.mark.parametrize("options", [{}, {"filters": KEPT}], ids=["known", "unknown"])
def test_saved_again_after_an_elastic_resume(folder: str, options: dict[str, Any], tmp_path: Path) -> None:
    """By other workers and batches, twice: a state of three phases into the state of none."""
    seen: list[int] = []
    for number, (workers, size) in enumerate([(0, 3), (2, 2), (1, 4), (0, 3)]):
        loader = make(folder, num_workers=workers, batch_size=size, shuffle=True, **options)
        if number:
            dcp.load({"loader": loader}, checkpoint_id=tmp_path / str(number - 1))
        iterator = iter(loader)
        seen += [row for _, batch in zip(range(3 if number < 3 else 99), iterator, strict=False)
                 for row in batch["id"].tolist()]  # fmt: skip
        dcp.save({"loader": loader}, checkpoint_id=tmp_path / str(number))
    assert sorted(seen) == [row for row in range(38) if not options or row % 3]


def test_other_data_is_told_and_loaded_if_not_strict(folder: str, tmp_path: Path) -> None:
    """The remedy that the message names: the plain state, filled like any other value."""
    loader = make(folder)
    next(iter(loader))
    dcp.save({"loader": loader}, checkpoint_id=tmp_path)
    other = make(folder, columns=["id"], fraction=0.9)
    with pytest.raises(
        CheckpointMismatchError, match=r"schema: (?s:.*)subset: nothing in the state(?s:.*)strict=False"
    ):
        dcp.load({"loader": other}, checkpoint_id=tmp_path)
    values = {"loader": other.state_dict()}
    dcp.load(values, checkpoint_id=tmp_path)
    other.load_state_dict(values["loader"], strict=False)
    assert other.state_dict()["links"][-1]["batches"] == 1


def test_strict_false_loads_a_state_of_another_plan_version(folder: str) -> None:
    whole = batches(make(folder))
    loader = make(folder)
    next(iter(loader))
    state = sealed({**through_json(loader.state_dict()), "plan_version": 99})
    with pytest.raises(CheckpointMismatchError, match=r"plan version: 99 in the state(?s:.*)strict=False"):
        make(folder).load_state_dict(state)
    again = make(folder)
    again.load_state_dict(state, strict=False)
    assert batches(again) == whole[1:]


@pytest.mark.parametrize("options", list(KINDS.values()), ids=list(KINDS))
def test_states_of_the_form_before_are_loaded(folder: str, options: dict[str, Any]) -> None:
    """Lists of links, no component that says nothing, and a digest that covers the texts of the data."""
    loader = make(folder, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    old = through_json({name: value for name, value in state.items() if not name.startswith("dp_rank_")})
    old["data"] = {name: component for name, component in old["data"].items() if component[1] or name == "origin"}
    del old["digest"]
    old["digest"] = digest_before(old)
    rest = [plain(batch) for batch in iterator]
    again = make(folder, **options)
    again.load_state_dict(old)
    assert batches(again) == rest
    with pytest.raises(CheckpointMismatchError, match="damaged"):
        make(folder, **options).load_state_dict({**old, "epoch": 1})


def digest_before(state: Any) -> str:
    import hashlib

    return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()


def test_ranks_save_and_load_together(folder: str, tmp_path: Path) -> None:
    """With FSDP2; each rank continues with its own rows, also where their counts are known only after reading."""
    job = Path(__file__).with_name("checkpoint_job.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    out = subprocess.run([*command, str(job), folder, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert not out.returncode, out.stderr[-3000:]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert len(found[0]) == 6
    for kind in found[0]:
        for rank in found:
            assert rank[kind]["resumed"] == rank[kind]["rest"] != [], kind
    for rank in found:
        for kind in ("unknown", "unknown, two workers", "sync"):
            assert "all_ranks=True" in rank[kind]["alone"]
    for kind in ("plain", "unknown, gathered"):
        taken = [row for rank in found for row in rank[kind]["taken"]]
        assert sorted(taken + found[0][kind]["alone"]) == [row for row in range(38) if kind == "plain" or row % 3], kind
