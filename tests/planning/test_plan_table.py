"""What a rank's plan shows of itself: all reads as values, the first of them as text and HTML."""

import pickle
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import data_file, data_files, groups, make_plan, rank_rows, settings_of
from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.planning.plan import Plan


def parts(count: int) -> list[DataFile]:
    return [
        data_file(f"s3://bucket/data/part-{number:02d}.parquet?token=s3cret", [1000, 500]) for number in range(count)
    ]


def test_the_text_names_the_first_files_and_rows_of_each_worker() -> None:
    plan = make_plan(parts(8), 2, split_rows=1000, batch_size=250, num_shards=2).rank(3, 1)
    assert str(plan) == repr(plan)
    assert str(plan).splitlines() == [
        "RankPlan: epoch 3, rank 1 of 2",
        "4,000 rows in 16 steps (batches of 250 rows), 8 splits",
        "files in s3://bucket/data/",
        "  worker  file             first row  last row  rows",
        "  0       part-00.parquet      1,000     1,499   500",
        "  0       part-02.parquet      1,000     1,499   500",
        "  0       part-04.parquet      1,000     1,499   500",
        "  0       part-06.parquet      1,000     1,499   500",
        "  1       part-01.parquet      1,000     1,499   500",
        "  1       part-03.parquet      1,000     1,499   500",
        "  1       part-05.parquet      1,000     1,499   500",
        "  1       part-07.parquet      1,000     1,499   500",
    ]


def test_the_text_stays_short_and_counts_what_it_leaves_out() -> None:
    lines = str(make_plan(parts(20), num_shards=1).rank(0, 0)).splitlines()
    assert len(lines) == 13
    assert lines[-1].split() == ["0", "...", "and", "12", "more"]
    lines = str(make_plan(parts(20), num_shards=12).rank(0, 0)).splitlines()
    assert lines[-1].split() == ["...", "4", "more", "workers"]
    assert len(lines) < 30
    lines = str(make_plan(parts(1), num_shards=2).rank(0, 0)).splitlines()
    assert lines[-1].split() == ["1", "nothing"]


def test_rows_that_only_reading_shows_are_unknown() -> None:
    plan = make_plan([data_file("a.csv", [None, None])], exact=False).rank(0, 0)
    assert "rows known only after reading" in str(plan)
    (read,) = plan.table()
    assert read["first_row"] is read["last_row"] is read["rows"] is None
    assert str(plan).splitlines()[-1].split() == ["0", "a.csv", "unknown", "unknown", "unknown"]


def test_padding_and_windows_are_marked() -> None:
    plan = make_plan(parts(2), 2, split_rows=500, batch_size=1024, even="pad", buffer_rows=1000).rank(0, 0)
    reads = plan.table()
    assert sum(read["rows"] for read in reads if not read["padding"]) == plan.rows
    assert sum(read["rows"] for read in reads if read["padding"]) == 2 * 1024 - 1500
    assert {read["window"] for read in reads if not read["padding"]} == {0, 1}
    lines = str(plan).splitlines()
    assert lines[2:4] == [
        "shuffled in windows of 750 rows from 2 of 2 splits (batch variance up to 1.00",
        "times that of random sampling)",
    ]
    assert lines[5].split()[-2:] == ["window", "padding"]


def test_no_secret_of_a_path_is_shown() -> None:
    plan = make_plan(parts(3)).rank(0, 0)
    assert "s3cret" not in str(plan) + plan._repr_html_() + str(plan.table())


def test_the_html_is_well_formed_and_escapes_names() -> None:
    plan = make_plan([data_file("<b>&.parquet", [10])]).rank(0, 0)
    html = ElementTree.fromstring(plan._repr_html_())
    assert "<b>&.parquet" in ["".join(cell.itertext()) for cell in html.iter("td")]


@given(groups, st.data())
def test_the_table_holds_each_row_that_is_delivered(rows: list[list[int]], data: st.DataObject) -> None:
    ranks, options = data.draw(settings_of(buffers=True))
    try:
        plan = make_plan(data_files(rows), ranks, split_rows=4, **options)
    except (EmptyDatasetError, ShardingError, ValueError):
        return
    for rank in range(ranks):
        reads = [read for read in plan.rank(0, rank).table() if not read["padding"]]
        listed = {(read["file"], row) for read in reads for row in range(read["first_row"], read["last_row"] + 1)}
        given_rows = rank_rows(plan, 0, rank)
        assert set(given_rows) <= listed
        assert sum(read["rows"] for read in reads) == len(given_rows)
        if all(read["rows"] == read["last_row"] - read["first_row"] + 1 for read in reads):
            assert len(listed) == len(given_rows)


@pytest.mark.parametrize(("sharding", "times"), [("interleave", 1.0), ("contiguous", 2.0), ("strided", 4.0)])
def test_a_ranks_plan_says_how_much_all_ranks_read(sharding: str, times: float) -> None:
    plan: Plan = make_plan([data_file("a.parquet", [8]), data_file("b.parquet", [8])], 4, sharding=sharding)
    found = plan.rank(0, 3)
    assert found.read_amplification == plan.read_amplification(0) == times
    assert pickle.loads(pickle.dumps(found)).read_amplification == times


def test_a_kept_plan_distinguishes_files_whose_names_differ_only_in_what_is_hidden() -> None:
    links = [data_file(f"https://host/get?file={name}", rows) for name, rows in (("a", [2]), ("b", [3, 3]), ("c", [4]))]
    found = make_plan(links).rank(0, 0)
    kept = pickle.loads(pickle.dumps(found))
    assert list(kept.layouts.values()) == list(found.layouts.values())
    assert [key[1] for key in kept.layouts] == ["https://host/get", "https://host/get (2)", "https://host/get (3)"]
    assert [task.rows for task in kept.tasks(0)] == [task.rows for task in found.tasks(0)]
    assert kept.table()[1]["file"] == "https://host/get (2)"
