"""Options, numbers and data that no plan can be made of."""

import pytest

from tests.planning.helpers import chunk_files, data_file, data_files, make_plan
from torch_dataloader_utils import Rotate
from torch_dataloader_utils.errors import EmptyDatasetError, OptionError, ShardingError
from torch_dataloader_utils.planning.options import PlanOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: expected a whole number of at least 1"),
        ({"num_shards": 0}, "num_shards=0"),
        ({"even": "yes"}, "even='yes': expected one of 'none', 'drop', 'pad', 'sync'"),
        ({"last_batch": "fill"}, "last_batch='fill': expected one of"),
        ({"assignment": "x"}, "assignment='x': expected one of"),
    ],
)
def test_options_that_no_plan_has(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PlanOptions(**options)


def test_the_same_word_for_even_and_last_batch_is_accepted() -> None:
    assert make_plan(chunk_files(5), even="drop", last_batch="drop", batch_size=2).steps(0) == [2]
    assert make_plan(chunk_files(5), even="pad", last_batch="pad", batch_size=2).steps(0) == [3]


def test_ranks_that_do_not_exist() -> None:
    plan = make_plan(chunk_files(4), 2)
    for rank in (-1, 2):
        with pytest.raises(OptionError, match=rf"rank={rank} with num_ranks=2.*\[0, 2\)"):
            plan.rank(0, rank)
    with pytest.raises(OptionError, match="num_ranks=0"):
        make_plan(chunk_files(4), 0)


def test_even_drop_needs_a_step() -> None:
    with pytest.raises(ShardingError, match=r"N=7 rows.*R=2 ranks.*B=4.*R\*B=8"):
        make_plan(chunk_files(4, 3), 2, even="drop", batch_size=4)
    # Of 15 rows in two rounds of two shards, one round has 7 rows.
    with pytest.raises(ShardingError, match="N=7 rows in an epoch"):
        make_plan(chunk_files(15), 2, even="drop", batch_size=4, sharding=Rotate(4))
    assert make_plan(chunk_files(16), 2, even="drop", batch_size=4, sharding=Rotate(4)).steps(0) == [
        1,
        1,
    ]


def test_nothing_to_deliver() -> None:
    with pytest.raises(EmptyDatasetError, match="None of the 2 files holds a row"):
        make_plan(data_files([[0], []]))
    pruned = [data_file("a", [4], pruned=[0])]
    for even in ("drop", "pad"):
        with pytest.raises(EmptyDatasetError, match=f"even='{even}'"):
            make_plan(pruned, even=even)
        for files in (pruned, [], data_files([[0], []])):
            assert make_plan(files, 3, even=even, grows=True).steps(0) == [0, 0, 0]
    for files in (pruned, []):
        plan = make_plan(files, 2, num_shards=3)
        assert (plan.steps(0), plan.rank(0, 1).shards, plan.rank(0, 1).steps) == ([0, 0], ((), (), ()), 0)
        assert plan.read_amplification(0) == 1.0
