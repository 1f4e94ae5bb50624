"""`sharding` in each of its forms: a word, a value, a dict with `kind`: the same plan, states and digests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.resume.helpers import make, pass_with_states, write_files
from torch_dataloader_utils import OptionError, Rotate, Strided, UnknownOptionError
from torch_dataloader_utils.options import parse_options
from torch_dataloader_utils.planner import plan_options

SAME: list[tuple[Any, Any]] = [
    (Rotate(6), {"kind": "rotate", "total_shards": 6}),
    (Rotate(6, full_rotation=True), {"kind": "Rotate", "total_shards": 6, "full_rotation": True}),
    (Rotate(stick_to_shard=True), {"kind": "ROTATE", "stick_to_shard": True}),
    (Rotate(), "rotate"),
    (Strided("batch"), {"kind": "strided", "unit": "batch"}),
    (Strided(), "strided"),
    ("interleave", {"kind": "interleave"}),
    ("auto", {"kind": "Auto"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(("value", "other"), SAME, ids=str)
def test_all_forms_make_one_plan_and_the_same_states(folder: str, value: Any, other: Any) -> None:
    for rank in range(2):
        place = {"num_ranks": 2, "rank": rank, "shuffle": True}
        one, two = make(folder, sharding=value, **place), make(folder, sharding=other, **place)
        assert pass_with_states(one) == pass_with_states(two)
        reports = [loader.dataset._latest.planner.report(0, 0) for loader in (one, two)]
        assert reports[0] == reports[1]  # what the ranks compare
        assert one.dataset.plan(1) == two.dataset.plan(1)
    assert plan_options(parse_options({"sharding": value})) == plan_options(parse_options({"sharding": other}))


def test_ranks_with_other_fields_do_not_agree(folder: str) -> None:
    made = [make(folder, num_ranks=2, rank=0, sharding=Rotate(6, full_rotation=full)) for full in (False, True)]
    first, second = (loader.dataset._latest.planner.report(0, 0) for loader in made)
    assert first != second


class Backwards:
    """A policy that is an object, without options."""

    def __call__(self, order: Any, world: Any) -> Any:
        return order.every(world.num_ranks - 1 - world.rank, world.num_ranks)


def test_ranks_with_objects_of_one_class_agree(folder: str) -> None:
    loaders = [make(folder, num_ranks=2, rank=0, sharding=Backwards()) for _ in range(2)]
    first, second = (loader.dataset._latest.planner.report(0, 0) for loader in loaders)
    assert first == second


@pytest.mark.parametrize(
    ("sharding", "error", "message"),
    [
        ({"kind": "rotate", "unit": "row"}, UnknownOptionError, "Rotate has no field 'unit'"),
        ({"kind": "strided", "total_shards": 4}, UnknownOptionError, "Strided has no field 'total_shards'"),
        ({"kind": "rotate", "total_shards": 0}, OptionError, "Rotate: total_shards=0: expected a whole number of at"),
        ({"kind": "rotate", "stick_to_shard": 1}, OptionError, "Rotate: stick_to_shard=1: expected True or False"),
        ({"kind": "strided", "unit": "rows"}, OptionError, "Strided: unit='rows': expected one of 'row', 'batch'"),
        ({"total_shards": 6}, OptionError, r"sharding=\{'total_shards': 6\}: expected the name of a policy, Rotate"),
        ({}, OptionError, r"sharding=\{\}: expected the name of a policy, Rotate"),
        ({"kind": Rotate}, OptionError, "expected the name of a policy, Rotate"),
        ({"kind": "auto", "total_shards": 6}, OptionError, "has no option 'total_shards'; it has none"),
        (5, OptionError, "sharding=5: expected the name of a policy"),
        ({"kind": "rotate", "full_rotation": True}, OptionError, r"Use sharding=Rotate\(n, full_rotation=True\)"),
        (
            {"kind": "rotate", "total_shards": 2, "stick_to_shard": True},
            OptionError,
            r"exclude each other: .* Use sharding=Rotate\(stick_to_shard=True\), or sharding=Rotate\(2\)\.",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_named(sharding: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_options(parse_options({"sharding": sharding}))
