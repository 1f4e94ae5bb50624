"""`tdu verify`: every row exactly once, or which rows are not."""

from __future__ import annotations

import pytest

SPLITS = ("data", "--set", "split_rows=100")  # every row group is a split

GOOD = [
    ("--num-ranks", "3"),
    ("--num-ranks", "3", "--even", "drop", "--batch-size", "64"),
    ("--num-ranks", "3", "--even", "pad", "--batch-size", "64", "--num-workers", "2", "--shuffle"),
    ("--num-ranks", "3", "--last-batch", "drop", "--batch-size", "64"),
    ("--num-ranks", "2", "--last-batch", "wrap", "--batch-size", "64", "--shuffle", "splits"),
    ("--num-ranks", "3", "--sharding", "strided", "--batch-size", "7"),
    ("--num-ranks", "2", "--shuffle", "--set", "shuffle_buffer_size=70", "--num-workers", "3"),
    ("--num-ranks", "2", "--sharding", "{kind: rotate, total_shards: 4}", "--epoch", "3"),
    ("--num-ranks", "2", "--set", "canonical_ranks=4", "--batch-size", "8", "--shuffle"),
]


@pytest.mark.parametrize("options", GOOD, ids=" ".join)
def test_the_plan_of_every_policy_is_complete_and_disjoint(tdu, options):
    found = tdu.json("verify", *SPLITS, *options)
    assert found["ok"]
    plan = found["plan"]
    assert plan["delivered"] + plan["left_out"] == plan["expected"] == 800
    assert plan["faults"] == []


def test_padding_and_rows_left_out_are_shown_as_promised(tdu):
    shown = tdu("verify", *SPLITS, "--num-ranks", "3", "--even", "drop", "--batch-size", "64")
    assert f"{800 % (3 * 64)}, as the options say" in shown
    assert f"Every row exactly once, but for the {800 % (3 * 64)} that are left out." in shown


def test_a_row_group_that_two_ranks_read_is_located(tdu):
    found = tdu.json("verify", *SPLITS, "--num-ranks", "2", "--sharding", "doctored:repeats", code=1)
    (fault,) = found["plan"]["faults"]
    assert fault["path"].endswith("a.parquet")
    assert (fault["start"], fault["stop"], fault["times"], fault["segments"]) == (0, 100, 2, [0])
    assert fault["ranks"] == [0, 1]
    assert (found["plan"]["missing"], found["plan"]["repeated"]) == (0, 100)


def test_a_row_group_that_no_rank_reads_is_located(tdu):
    shown = tdu("verify", *SPLITS, "--num-ranks", "2", "--sharding", "doctored:loses", code=1)
    (line,) = [line for line in shown.splitlines() if line.startswith("missing")]
    assert line.split()[1].endswith("b.parquet")
    assert "300 to 399" in line
    assert "100 missing, 0 repeated" in shown


def test_a_file_that_a_generate_strategy_forgets_is_located(tdu):
    found = tdu.json("verify", "data", "--num-ranks", "2", "--set", "split_strategy=doctored:Skipping", code=1)
    (fault,) = found["plan"]["faults"]
    assert fault["path"].endswith("b.parquet")
    assert (fault["start"], fault["stop"], fault["times"], fault["ranks"]) == (0, 400, 0, [])


def test_a_doctored_policy_is_located_under_a_shuffle_and_even_steps(tdu):
    shared = ("--num-ranks", "2", "--sharding", "doctored:loses", "--shuffle", "--num-workers", "2")
    assert tdu.json("verify", *SPLITS, *shared, code=1)["plan"]["missing"] == 100
    assert tdu.json("verify", *SPLITS, *shared, "--even", "pad", code=1)["plan"]["missing"] == 100


def test_read_compares_the_rows_that_arrive(tdu):
    options = ("--num-ranks", "3", "--even", "pad", "--batch-size", "64", "--shuffle")
    counted = tdu.json("verify", *SPLITS, *options, "--read")["read"]
    assert (counted["rows"], counted["expected"], counted["ids"]) == (800, 800, [])
    compared = tdu.json("verify", *SPLITS, *options, "--read", "--id-column", "id")["read"]
    assert (compared["rows"], compared["missing"], compared["repeated"]) == (800, [], [])


def test_read_compares_how_often_an_id_arrives_with_how_often_it_is_in_the_data(tdu):
    assert tdu.json("verify", *SPLITS, "--read", "--id-column", "city")["ok"]


def test_a_filter_that_matches_nothing_leaves_nothing_to_compare(tdu):
    found = tdu.json("verify", *SPLITS, "--filters", '[["x", "=", 0.25]]', "--read", "--id-column", "id")
    assert found["ok"]
    assert found["read"]["rows"] == 0


def test_ranks_that_would_stop_together_are_read_to_their_ends(tdu):
    found = tdu.json("verify", *SPLITS, "--num-ranks", "3", "--even", "sync", "--read", "--id-column", "id")
    assert found["ok"]
    assert found["read"]["rows"] == 800


def test_filtered_rows_are_verified_before_the_filter_and_compared_after_it(tdu):
    options = ("--num-ranks", "2", "--filters", '[["id", ">", 450]]', "--read", "--id-column", "id")
    found = tdu.json("verify", *SPLITS, *options)
    assert found["plan"]["expected"] == 400  # the row groups that statistics do not rule out
    assert found["read"]["rows"] == 349
    assert "before filters" in tdu("verify", *SPLITS, *options)


def test_rows_are_assigned_and_not_said_to_be_delivered_if_steps_end_the_epoch(tdu):
    options = ("--num-ranks", "2", "--batch-size", "64", "--set", "steps_per_epoch=3", "--read", "--id-column", "id")
    shown = tdu("verify", *SPLITS, *options)
    assert f"{2 * 3 * 64} rows, compared by id" in shown
    assert "delivered" not in shown
    assert "Every row is assigned exactly once; each rank ends after 3 steps." in shown
