"""The plan page as a file: what it knows of a dataset, what it must not show, and where it is written."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from fsspec.implementations.memory import MemoryFileSystem

from torch_dataloader_utils import OptionError, Processes, Shuffle, StructuredDataset, Sync, Transform, Weights, combine
from torch_dataloader_utils.options import parse_options
from torch_dataloader_utils.plan_page import data as page_module
from torch_dataloader_utils.plan_page.call import call_values
from torch_dataloader_utils.plan_page.data import page_data, planned
from torch_dataloader_utils.plan_page.page import page_of
from torch_dataloader_utils.planner import Planner
from torch_dataloader_utils.redaction import printable, remember_secrets


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """1,000 rows in four files of row groups of 50."""
    path = tmp_path_factory.mktemp("planned")
    for number in range(4):
        rows = pa.table({"id": range(number * 250, number * 250 + 250)})
        pq.write_table(rows, path / f"part-{number}.parquet", row_group_size=50)
    return path


def dataset_of(path, **options):
    return StructuredDataset.create_dataloader(str(path), **{"num_ranks": 1, "rank": 0, **options})[1]


def data_of(path, **options):
    dataset = dataset_of(path, **options)
    planner = Planner(dataset._source, dataset._options)
    return page_data("StructuredDataset", dataset._source, dataset._options, planner, 0)


def data_in(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def test_plan_page_writes_the_page_and_returns_its_path(folder, tmp_path):
    dataset = dataset_of(folder)
    path = dataset.plan_page(tmp_path / "plan.html")
    assert path == tmp_path / "plan.html"
    first = path.read_text()
    assert first.startswith("<!doctype html>")
    path.write_text("an older page")
    assert dataset.plan_page(str(path)).read_text() == first  # the same dataset, the same bytes


def test_the_call_of_a_mix_names_its_datasets(folder):
    parts = {"web": dataset_of(folder), "code": dataset_of(folder)}
    mixed = combine(parts, weights={"web": 1, "code": 3}, stop="all", num_ranks=1, rank=0).dataset
    call = call_values("CombinedDataset", mixed._source, mixed._options)
    assert call["target"] == {"name": "datasets", "python": '{"code": dataset_0, "web": dataset_1}'}
    weights = '{"web": 1, "code": 3}'
    assert call["options"] == {
        "weights": {"python": weights, "yaml": weights},
        "stop": {"python": '"all"', "yaml": "all"},
    }
    assert "it mixes the rows of several datasets" in page_of(
        page_data("CombinedDataset", mixed._source, mixed._options, Planner(mixed._source, mixed._options), 0)
    )


def test_a_mix_of_splits_is_not_said_to_mix_rows(folder):
    mixed = combine([dataset_of(folder), dataset_of(folder)], batches="splits", num_ranks=1, rank=0).dataset
    assert page_module.why_fixed(mixed._source, mixed._options) == "it merges the splits of several datasets"


def test_plan_page_starts_at_the_given_epoch_else_at_the_next_one(folder, tmp_path):
    dataset = dataset_of(folder)
    dataset.set_epoch(3)
    assert data_in(dataset.plan_page(tmp_path / "a.html").read_text())["options"]["epoch"] == 3
    assert data_in(dataset.plan_page(tmp_path / "b.html", epoch=5).read_text())["options"]["epoch"] == 5
    with pytest.raises(OptionError, match="at least 0"):
        dataset.plan_page(tmp_path / "c.html", epoch=-1)


def test_plan_page_creates_no_folder(folder, tmp_path):
    with pytest.raises(OptionError, match=r"there is no folder .*missing.*: create it first"):
        dataset_of(folder).plan_page(tmp_path / "missing" / "plan.html")
    assert not (tmp_path / "missing").exists()


def test_plan_page_replaces_no_folder(folder, tmp_path):
    with pytest.raises(OptionError, match=r"this is a folder: pass a file in it, such as plan\.html"):
        dataset_of(folder).plan_page(tmp_path)


def test_the_page_loads_nothing(folder):
    html = page_of(data_of(folder))
    assert set(re.findall(r"https?://[^\"'\s]+", html)) <= {"http://www.w3.org/2000/svg"}  # the name of SVG's tags
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|\bimport\s*\(|src=", html)


def test_the_page_of_a_folder_with_hostile_names_holds_them_as_text(tmp_path):
    place = tmp_path / "<" / "script><b>{{scripts}}&amp;"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"id": range(10)}), place / "a\"b'<!--<script>\u2028.parquet")
    html = dataset_of(tmp_path).plan_page(tmp_path / "plan.html").read_text()
    assert html.count("<script") == 2
    assert html.count("</script") == 2
    assert "<!--" not in html
    assert "<b>" not in html
    files = data_in(html)["files"]
    assert [files["folder"] + name for name in files["names"]] == [str(next(place.iterdir()))]


def test_a_hostile_folder_is_escaped_in_the_title(tmp_path):
    place = tmp_path / "<img src=x onerror=alert(1)>"
    place.mkdir()
    pq.write_table(pa.table({"id": range(10)}), place / "a.parquet")
    html = dataset_of(place).plan_page(tmp_path / "plan.html").read_text()
    assert "&lt;img src=x onerror=alert(1)&gt;</title>" in html
    assert "<img" not in html


def test_values_are_on_the_page_as_code_that_makes_them(folder):
    """Also one whose first field has its default, so that the option alone says nothing."""
    source = dataset_of(folder)._source
    given = {
        "weights": Weights(temperature=2.0, max_repeats=3),
        "even": Sync(4),
        "worker_mode": Processes(context="fork"),
        "transform": Transform(len, rows="any"),
    }
    for name in ("weights", "even", "worker_mode"):
        of_mix = name == "weights"
        options = parse_options({name: given[name], "num_workers": 2}, "combine" if of_mix else "files")
        shown = call_values("StructuredDataset", source, options)["options"][name]
        kind = type(given[name]).__name__
        assert eval(shown["python"], {kind: type(given[name])}) == given[name]
        assert type(given[name]).from_dict(yaml.safe_load(shown["yaml"])) == given[name]
        assert shown["imports"] == [kind]
    options = parse_options({"transform": given["transform"]})
    assert call_values("StructuredDataset", source, options)["options"] == {"transform": {"code": "transform"}}
    plain = parse_options({"even": "sync", "num_workers": 2, "worker_mode": "processes"})
    shown = call_values("StructuredDataset", source, plain)["options"]
    assert {name: shown[name]["python"] for name in ("even", "worker_mode")} == {
        "even": '"sync"',
        "worker_mode": '"processes"',
    }


def test_credentials_are_not_on_the_page(folder):
    options = parse_options({"storage_options": {"key": "SECRET-1"}, "cache": "s3://me:SECRET-2@cache/dir"})
    source = dataset_of(folder)._source
    signed = "https://user:SECRET-3@store/part.parquet?X-Amz-Signature=SECRET-4"
    file = replace(source.files[0], info=replace(source.files[0].info, path=signed))
    files = (file, *source.files[1:])
    source = replace(source, files=files, paths=(printable(signed),), splits=replace(source.splits, files=files))
    html = page_of(page_data("StructuredDataset", source, options, Planner(source, options), 0))
    assert "SECRET" not in html
    call = data_in(html)["call"]
    for name in ("storage_options", "cache"):  # without its password, it would be another folder
        assert call["options"][name] == {"hidden": "not shown here: credentials, or too long"}
    assert call["target"]["value"] == "https://store/part.parquet"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("https://store/a b.parquet?sig=SECRET", "https://store/a b.parquet"),
        ("https://store/it's.parquet?sig=SECRET", "https://store/it's.parquet"),
        ("https://store/a.parquet?sig=SEC'RET)SECRET", "https://store/a.parquet"),
        ("https://SECRET@store/a.parquet", "https://store/a.parquet"),
        ("https://me:SE@CRET:SECRET@store/a.parquet", "https://store/a.parquet"),
        ("zip://a.csv::https://me:SECRET@store/a.zip?sig=SECRET", "zip://a.csv::https://store/a.zip"),
        (
            "abfs://container@account.dfs.core.windows.net/a?sig=SECRET",
            "abfs://container@account.dfs.core.windows.net/a",
        ),
        ("/data/what?/a@b:c.parquet", "/data/what?/a@b:c.parquet"),
    ],
)
def test_paths_are_shown_without_secrets(path, shown):
    remember_secrets(path)
    assert printable(path) == shown


def test_the_source_keeps_the_paths_that_were_given(folder):
    assert dataset_of(folder)._source.paths == (str(folder),)
    files = sorted(map(str, folder.iterdir()))
    assert StructuredDataset.create_dataloader(files)[1]._source.paths == tuple(files)


def test_it_keeps_them_without_credentials():
    filesystem = MemoryFileSystem()
    filesystem.pipe("/bucket/a.csv?signature=SECRET", b"id\n1\n")
    _, dataset = StructuredDataset.create_dataloader("memory://bucket/a.csv?signature=SECRET", filesystem=filesystem)
    assert dataset._source.paths == ("memory://bucket/a.csv",)


def test_the_call_has_the_options_that_were_given(folder):
    options = {"columns": ["id"], "split_rows": 100, "shuffle": Shuffle(window_bytes="64MiB"), "transform": identity}
    dataset = dataset_of(folder, **options, filters=pa.compute.field("id") > 3, num_workers=0, prefetch_bytes="256MiB")
    call = call_values("StructuredDataset", dataset._source, dataset._options)
    assert call["function"] == "stream"
    place = {"python": f'"{folder}"', "yaml": str(folder)}
    assert call["target"] == {"name": "source", "value": str(folder), **place}
    assert call["options"] == {
        "columns": {"python": '["id"]', "yaml": '["id"]'},
        "filters": {"code": "filters"},
        "transform": {"code": "identity"},
        "split_rows": {"python": "100", "yaml": "100"},
        "shuffle": {
            "python": 'Shuffle(window_bytes="64MiB")',
            "yaml": '{"kind": "shuffle", "window_bytes": "64MiB"}',
            "imports": ["Shuffle"],
        },
        "num_workers": {"python": "0", "yaml": "0"},
    }


def identity(batch):
    return batch


def test_a_function_that_has_no_usable_name_is_called_by_its_option(folder):
    dataset = dataset_of(folder, transform=lambda batch: batch)
    assert call_values("StructuredDataset", dataset._source, dataset._options)["options"] == {
        "transform": {"code": "transform"}
    }


def test_splits_are_listed_as_cut_with_and_without_a_shuffle(tmp_path):
    rows = pa.table({"text": ["x" * 1000] * 40_000})  # 40 MB
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=4000, use_dictionary=False)
    for shuffle in (False, True):
        splits = data_of(tmp_path, shuffle=shuffle)["splits"]
        assert [len(splits[name]["file"]) for name in ("unshuffled", "shuffled")] == [1, 5]
        assert [sum(splits[name]["rows"]) for name in ("unshuffled", "shuffled")] == [40_000, 40_000]
    assert [rows for rows, _ in splits["unshuffled"]["segments"][0]] == [4000] * 10


@pytest.mark.parametrize("options", [{"split_rows": 100}, {"split_bytes": "1KiB"}])
def test_given_sizes_cut_both_lists_alike(folder, options):
    splits = data_of(folder, **options)["splits"]
    assert splits["unshuffled"] == splits["shuffled"]
    assert len(splits["shuffled"]["file"]) > 4


def test_rows_that_are_known_only_after_reading_are_none(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    data = data_of(tmp_path)
    assert not data["exact"]
    assert data["files"] == [[str(tmp_path / "a.csv"), None]]
    assert data["splits"]["shuffled"]["rows"] == data["splits"]["shuffled"]["start"] == [None]


class Halves:
    """The first worker of each rank gets every second file."""

    def generate(self, files, num_workers, epoch, num_ranks, rank):
        from torch_dataloader_utils import Shard, Split

        return [Shard(0, tuple(Split(file) for file in files[rank::num_ranks]))]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"split_strategy": Halves()}, "the split strategy Halves makes the shards itself"),
        ({"sharding": lambda order, shape: order.part(shape.rank, shape.num_ranks)}, "a function of your own"),
        ({"canonical_ranks": 4}, "canonical_ranks shards for virtual ranks"),
        ({"shuffle_seed": 2**60}, "the seed is too large"),
    ],
)
def test_plans_that_only_python_can_make_are_on_the_page(folder, options, reason):
    dataset = dataset_of(folder, num_ranks=2, batch_size=50, **options)
    planner = Planner(dataset._source, dataset._options)
    shown = page_data("StructuredDataset", dataset._source, dataset._options, planner, 7)["fixed"]
    assert reason in shown["reason"]
    assert list(shown["plans"]) == ["7", "8", "9", "10"]
    pieces = [
        piece for rank in shown["plans"]["8"]["ranks"] for worker in rank["workers"] for piece in worker["pieces"]
    ]
    whole = {number: [0] * 250 for number in range(4)}
    for file, start, stop in pieces:
        whole[file][start:stop] = [count + 1 for count in whole[file][start:stop]]
    assert all(count == 1 for counts in whole.values() for count in counts)


def test_only_python_plans_partitions_one_after_another(tmp_path):
    for hour in (9, 10):
        (tmp_path / f"hour={hour}").mkdir()
        pq.write_table(pa.table({"id": range(20)}), tmp_path / f"hour={hour}" / "a.parquet")
    shown = data_of(tmp_path, shuffle="partition")["fixed"]
    assert shown["reason"] == "partitions are read one after another"
    [worker] = shown["plans"]["0"]["ranks"][0]["workers"]
    assert [file for file, *_ in worker["pieces"]] == [1, 0]  # "hour=10" is the first in file order


def test_large_plans_of_python_are_on_the_page_for_fewer_epochs(folder, monkeypatch):
    dataset = dataset_of(folder, num_ranks=2, canonical_ranks=4, batch_size=50)

    def epochs():
        return list(page_module.fixed_plans(dataset._source, dataset._options, dataset._passes.planner, 7))

    assert epochs() == ["7", "8", "9", "10"]
    monkeypatch.setattr(page_module, "_PIECES", 1)
    assert epochs() == ["7"]


def test_a_plan_that_the_page_can_make_is_not_on_it(folder):
    assert data_of(folder)["fixed"] is None


def test_planned_counts_what_ranks_repeat(folder):
    dataset = dataset_of(folder, num_ranks=3, batch_size=100, even="pad")
    ranks = planned(dataset._source, dataset._options, Planner(dataset._source, dataset._options), 0)["ranks"]
    counts = [(rank["rows"], rank["steps"], rank["padded"]) for rank in ranks]
    assert counts == [(333, 4, 67), (333, 4, 67), (334, 4, 66)]


def test_the_scripts_are_small_files(folder):
    room = Path(__file__).parent.parent.parent / "torch_dataloader_utils" / "plan_page"
    lengths = {path.name: len(path.read_text().splitlines()) for path in room.iterdir() if path.is_file()}
    assert {name: length for name, length in lengths.items() if length > 300} == {}
