"""What is said of ranks and workers without rows, and of uneven steps: never twice, and with a remedy that helps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import data_file, data_files, groups, make_plan, settings_of
from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.planning.advice import idle_ranks_advice, idle_workers_advice, uneven_steps_advice

ONE_GROUP = [data_file("a.parquet", [400])]
TEXT = [data_file("a.csv", [None])]


def test_one_huge_row_group_names_the_counts_and_the_remedies() -> None:
    advice = idle_ranks_advice(make_plan(ONE_GROUP, 4), 0)
    assert advice is not None
    assert "3 of the 4 ranks have no rows in epoch 0 (rows per rank: 400, 0, 0, 0)" in advice.problem
    assert "there is 1 split for 4 ranks" in advice.problem
    for remedy in ("even='drop'", "even='pad'", "sharding='contiguous'", "smaller row groups"):
        assert remedy in advice.remedy


@pytest.mark.parametrize("remedy", [{"even": "drop"}, {"even": "pad"}, {"sharding": "contiguous"}])
def test_the_remedies_for_one_huge_row_group_help(remedy: dict[str, str]) -> None:
    plan = make_plan(ONE_GROUP, 4, batch_size=10, **remedy)
    assert plan.rows(0) == [100] * 4
    assert idle_ranks_advice(plan, 0) is uneven_steps_advice(plan, 0) is None


@pytest.mark.parametrize(
    ("files", "options", "problem", "remedy"),
    [
        (ONE_GROUP, {"even": "sync"}, "ends the epoch of all ranks before the first step", "Use sharding='contiguous'"),
        (ONE_GROUP, {"steps_per_epoch": 3}, "repeat the rows of other ranks", "Use sharding='contiguous'"),
        (ONE_GROUP, {"last_batch": "drop"}, "a batch of 1,024 rows. The loader is empty", "smaller batch_size"),
        (ONE_GROUP, {"exact": False}, "(ranks 1, 2, 3)", "Use sharding='contiguous'"),
        (TEXT, {"exact": False}, "(ranks 1, 2, 3)", "count_rows=True with sharding='contiguous'"),
        ([data_file("a.parquet", [400] * 4)], {}, "there is 1 split for 4 ranks", "a smaller split_bytes="),
        ([data_file("a.parquet", [3])], {"sharding": "contiguous"}, "there are 3 rows for 4 ranks", "Use fewer ranks."),
    ],
)  # fmt: skip
def test_the_advice_fits_the_options(
    files: list[DataFile], options: dict[str, object], problem: str, remedy: str
) -> None:
    advice = idle_ranks_advice(make_plan(files, 4, **options), 0)
    assert advice is not None
    assert problem in advice.problem
    assert remedy in advice.remedy


def test_a_split_per_rank_needs_no_advice() -> None:
    for even in ("none", "sync", "drop", "pad"):
        plan = make_plan(data_files([[50]] * 4), 4, even=even, batch_size=10)
        assert idle_ranks_advice(plan, 0) is uneven_steps_advice(plan, 0) is None


def test_uneven_steps_name_the_counts() -> None:
    advice = uneven_steps_advice(make_plan(data_files([[50], [20]]), 2, batch_size=10), 7)
    assert advice is not None
    assert "the 2 ranks have different numbers of steps in epoch 7: 5, 2" in str(advice)
    unknown = uneven_steps_advice(make_plan(TEXT, 2, exact=False), 0)
    assert unknown is not None
    assert "not known before reading" in unknown.problem
    for remedy in ("count_rows=True", "steps_per_epoch=n", "even='sync'"):
        assert remedy in unknown.remedy
    uncounted = uneven_steps_advice(make_plan(TEXT, 2, exact=False), 0, countable=False)
    assert uncounted is not None
    assert uncounted.remedy == "Use steps_per_epoch=n or even='sync'."


def test_no_advice_leaves_out_rows_of_growing_data() -> None:
    uneven = make_plan(data_files([[50], [20]]), 2, batch_size=10, grows=True)
    unknown = make_plan(TEXT, 2, exact=False, grows=True)
    for advice in (
        idle_ranks_advice(make_plan(ONE_GROUP, 2, grows=True), 0),
        uneven_steps_advice(uneven, 0),
        uneven_steps_advice(unknown, 0),
    ):
        assert advice is not None
        assert "even='pad'" in advice.remedy
        assert not any(word in advice.remedy for word in ("even='drop'", "even='sync'", "steps_per_epoch"))
    uncounted = uneven_steps_advice(unknown, 0, countable=False)
    assert uncounted is not None
    assert uncounted.remedy == "Use torch's Join around the loop."


def test_a_long_list_of_ranks_is_cut() -> None:
    advice = idle_ranks_advice(make_plan(ONE_GROUP, 1024), 0)
    assert advice is not None
    assert "400, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 and 1,008 more)" in advice.problem


def test_workers_without_a_split_are_counted() -> None:
    advice = idle_workers_advice([3, 0, 1, 0])
    assert advice is not None
    assert "2 of the rank's 4 workers have nothing to read" in advice.problem
    assert idle_workers_advice([1, 1]) is idle_workers_advice([0]) is idle_workers_advice([0, 0]) is None


@given(groups, st.data())
def test_exactly_plans_with_a_rank_without_rows_get_that_advice(rows: list[list[int]], data: st.DataObject) -> None:
    ranks, options = data.draw(settings_of(even=("none", "sync"), last_batch=("partial", "drop")))
    try:
        plan = make_plan(data_files(rows), ranks, split_rows=4, **options)
    except DataLoaderUtilsError:
        return
    for epoch in range(2):
        advice = idle_ranks_advice(plan, epoch)
        assert (advice is not None) == (0 in plan.rows(epoch))
        assert idle_ranks_advice(replace(plan, exact=False), epoch) is None or advice is not None
