"""A policy with an option of its own, added from outside of the package: all of it is in this file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.resume.helpers import make, through_json, write_files
from torch_dataloader_utils import CheckpointMismatchError, OptionError, Processes, register_policy

ROWS = list(range(38))  # of the files that the helpers write
NAME = "striped, for this test"


@dataclass(frozen=True)
class Striped:
    """Runs of `my_option` rows, in turn."""

    my_option: int = 1

    def __post_init__(self) -> None:
        if self.my_option < 1:
            raise OptionError(f"my_option={self.my_option!r}: expected at least 1.")

    def __call__(self, order: Any, world: Any) -> Any:
        return order.deal(world.rank, world.num_ranks, self.my_option)


register_policy(NAME, Striped)

SPELLINGS: list[Any] = [{"kind": NAME, "my_option": 4}, {"kind": NAME.upper(), "my_option": 4}, Striped(my_option=4)]
DEFAULTS: list[Any] = [NAME, {"kind": NAME}, {"kind": NAME.title(), "my_option": 1}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]


def loaders(folder: str, ranks: int, **options: Any) -> list[Any]:
    return [make(folder, num_ranks=ranks, rank=rank, **options) for rank in range(ranks)]


@pytest.mark.parametrize("sharding", SPELLINGS, ids=["name", "name in capitals", "object"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_option_says_which_rows_a_rank_gets(folder: str, sharding: Any, ranks: int) -> None:
    for rank, loader in enumerate(loaders(folder, ranks, sharding=sharding)):
        assert ids(loader) == [row for row in ROWS if row // 4 % ranks == rank]


@pytest.mark.parametrize(
    "workers",
    [{"num_workers": 2}, {"num_workers": 2, "worker_mode": Processes(context="fork")}],
    ids=["threads", "processes"],
)
@pytest.mark.parametrize("even", ["none", "pad"])
def test_ranks_with_workers_get_every_row_once(folder: str, workers: dict[str, Any], even: str) -> None:
    sharding = {"kind": NAME, "my_option": 4}
    all_loaders = loaders(folder, 3, sharding=sharding, even=even, shuffle=True, **workers)
    got = [row for loader in all_loaders for batch in loader for row in real_rows(batch)]
    assert sorted(got) == ROWS


def real_rows(batch: Any) -> Sequence[int]:
    rows = batch["id"].tolist()
    return [row for row, real in zip(rows, batch.get("valid", [True] * len(rows)), strict=True) if real]


@pytest.mark.parametrize("sharding", SPELLINGS, ids=["name", "name in capitals", "object"])
@pytest.mark.parametrize(
    "changed",
    [{}, {"num_ranks": 3}, {"num_workers": 2}, {"my_option": 3}, {"num_ranks": 1, "my_option": 5, "num_workers": 3}],
    ids=str,
)
def test_an_epoch_is_resumed_under_other_options(folder: str, sharding: Any, changed: dict[str, Any]) -> None:
    """Another `my_option` begins a phase of its own; the state knows the one before."""
    first = loaders(folder, 2, sharding=sharding, shuffle=True)
    iterators = [iter(loader) for loader in first]
    got = [row for iterator in iterators for _ in range(3) for row in next(iterator)["id"].tolist()]
    state = through_json(first[0].state_dict())
    options = dict(changed)
    by = options.pop("my_option", 4)
    then = {"kind": NAME, "my_option": by} if isinstance(sharding, dict) else Striped(by)
    for loader in loaders(folder, options.pop("num_ranks", 2), sharding=then, shuffle=True, **options):
        loader.load_state_dict(state)
        got += ids(loader)
    assert sorted(got) == ROWS


@pytest.mark.parametrize("sharding", DEFAULTS, ids=str)
def test_defaults_need_not_be_given_and_states_hold_them(folder: str, sharding: Any) -> None:
    loader = make(folder, sharding=sharding)
    options = loader.state_dict()["links"][0]["options"]
    assert options["sharding"] == {"policy": NAME, "my_option": 1}


def test_a_state_of_a_class_is_not_continued_by_another(folder: str) -> None:
    loader = make(folder, sharding=Striped(4))
    iterator = iter(loader)
    next(iterator)
    other = make(folder, sharding="strided")
    other.load_state_dict(through_json(loader.state_dict()))
    with pytest.raises(CheckpointMismatchError, match=r"taken with sharding=.*Striped, but"):
        next(iter(other))


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        ({"kind": NAME, "mine": 4}, "has no option 'mine'; it has my_option=1"),
        ({"kind": "contiguous", "my_option": 4}, "has no option 'my_option'; it has none"),
        ({"kind": NAME, "my_option": 0}, "my_option=0: expected at least 1"),
        ({"kind": NAME, "my_option": {4}}, "not supported between|not JSON serializable"),
        ({"kind": "stripes"}, "sharding='stripes': expected one of"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named_when_the_loader_is_made(folder: str, sharding: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(folder, sharding=sharding)
