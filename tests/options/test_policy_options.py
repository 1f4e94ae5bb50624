"""A policy's option as a flat keyword and in the dict of `sharding`: the same plan, states and digests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resume.helpers import make, pass_with_states, write_files
from torch_dataloader_utils import OptionError
from torch_dataloader_utils.options import parse_options
from torch_dataloader_utils.planner import plan_options

BOTH = [
    ({"sharding": "rotate", "total_shards": 6}, {"policy": "rotate", "total_shards": 6}),
    (
        {"sharding": "rotate", "total_shards": 6, "full_rotation": True},
        {"policy": "rotate", "total_shards": 6, "full_rotation": True},
    ),
    ({"sharding": "rotate", "stick_to_shard": True}, {"policy": "rotate", "stick_to_shard": True}),
    ({"sharding": "strided", "shard_batches": True}, {"policy": "strided", "shard_batches": True}),
    ({"sharding": "interleave"}, {"policy": "interleave"}),
    ({"sharding": "auto"}, {"policy": "auto"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(("flat", "nested"), BOTH, ids=lambda value: str(value))
def test_both_spellings_make_one_plan_and_the_same_states(
    folder: str, flat: dict[str, Any], nested: dict[str, Any]
) -> None:
    for rank in range(2):
        place = {"num_ranks": 2, "rank": rank, "shuffle": True}
        one, other = make(folder, **flat, **place), make(folder, sharding=nested, **place)
        assert pass_with_states(one) == pass_with_states(other)
        reports = [loader.dataset._epochs.planner.report(0, 0) for loader in (one, other)]
        assert reports[0] == reports[1]  # what the ranks compare
        assert one.dataset.plan(1) == other.dataset.plan(1)


@pytest.mark.parametrize(("flat", "nested"), BOTH, ids=lambda value: str(value))
def test_both_spellings_are_the_same_options_of_a_plan(flat: dict[str, Any], nested: dict[str, Any]) -> None:
    assert plan_options(parse_options(flat)) == plan_options(parse_options({"sharding": nested}))


class Backwards:
    """A policy that is an object, without options."""

    def __call__(self, order: Any, world: Any) -> Any:
        return order.every(world.num_ranks - 1 - world.rank, world.num_ranks)


def test_ranks_with_objects_of_one_class_agree(folder: str) -> None:
    loaders = [make(folder, num_ranks=2, rank=0, sharding=Backwards()) for _ in range(2)]
    first, second = (loader.dataset._epochs.planner.report(0, 0) for loader in loaders)
    assert first == second


def test_a_value_may_be_given_twice_if_it_is_the_same() -> None:
    twice = {"sharding": {"policy": "rotate", "total_shards": 6}, "total_shards": 6}
    assert parse_options(twice).shard.total_shards == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sharding": {"policy": "rotate", "total_shards": 6}, "total_shards": 4},
            "total_shards=4 and sharding={'policy': 'rotate', 'total_shards': 6} were both given",
        ),
        (
            {"sharding": {"policy": "rotate", "stick_to_shard": True}, "stick_to_shard": False},
            "stick_to_shard=False and sharding=",  # also where one is the default
        ),
        (
            {"sharding": {"policy": "rotate", "split_batches": True}},
            "has no option 'split_batches'; it has stick_to_shard=False, full_rotation=False, total_shards=None",
        ),
        ({"sharding": {"policy": "strided"}, "total_shards": 4}, "total_shards=4 with sharding='strided'.*'rotate'"),
        ({"sharding": {"policy": "rotate", "total_shards": 0}}, "total_shards=0: expected a whole number of at least"),
        ({"sharding": {"policy": "rotate", "stick_to_shard": 1}}, "stick_to_shard=1: expected True or False"),
        ({"sharding": {"total_shards": 6}}, r"sharding=\{'total_shards': 6\}: expected \{'policy': name"),
        ({"sharding": {}}, r"sharding=\{\}: expected \{'policy': name"),
        ({"sharding": {"policy": "auto", "total_shards": 6}}, "has no option 'total_shards'; it has none"),
        ({"sharding": {"policy": 5}}, "sharding=5: expected the name of a policy"),
        ({"sharding": "contiguous", "full_rotation": True}, "the option belongs to sharding='rotate'"),
        ({"sharding": "rotate", "full_rotation": True}, "full_rotation=True without total_shards"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        plan_options(parse_options(options))
