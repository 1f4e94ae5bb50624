"""What the parts of a combination may be, which keywords are theirs, and what they share."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from deltalake import write_deltalake
from omegaconf import OmegaConf
from pyiceberg.catalog.sql import SqlCatalog

from tests.end_to_end.sharded import Plain, ids
from tests.iceberg.conftest import sql_config
from tests.seams.log_table import LogTable, commit, data_file
from torch_dataloader_utils import (
    Codes,
    CountsRequiredError,
    Delta,
    Files,
    Iceberg,
    OptionError,
    Padded,
    Sample,
    StructuredDataset,
    StructuredLoader,
    Subsets,
    Transform,
    UnknownOptionError,
    combine,
    stream,
)
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.options.keywords import option_defaults
from torch_dataloader_utils.options.parts import of_parts

ONE: dict[str, Any] = {"num_ranks": 1, "rank": 0}
PARTS = {"web": range(61), "code": range(1000, 1023)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files with ids, words, small numbers and lists."""
    for name, rows in PARTS.items():
        words = [f"{name} {row % 3}" if row % 2 else "both" for row in rows]
        table = pa.table({"id": rows, "word": words, "n": [row % 5 for row in rows], "x": [[row] for row in rows]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=3)
    return tmp_path


def paths(folder: Path) -> dict[str, str]:
    return {name: str(folder / f"{name}.parquet") for name in PARTS}


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that worker processes can import."""
    return batch.set_column(0, "id", pc.multiply(batch["id"], 2))


# ------------------------------------------------------------------------------------------------------ kinds of parts


def test_a_combination_is_one_loader(folder: Path, tmp_path: Path) -> None:
    loader = combine(paths(folder), batch_size=10, **ONE)
    assert isinstance(loader, StructuredLoader)
    assert sorted(ids(loader)) == [*PARTS["web"], *PARTS["code"]]
    assert loader.plan().rows == 84
    assert "'code' (23 rows)" in loader.describe().mix
    assert loader.metrics(total=True)["rows/code"] == 23
    assert loader.plan_page(tmp_path / "plan.html").stat().st_size > 1000
    assert loader.verdict() is not None
    with pytest.raises(OptionError, match="only tables have snapshots"):
        loader.advance()
    loader.close()


def kinds(folder: Path) -> dict[str, Any]:
    """The same rows as each kind of part."""
    path = str(folder / "web.parquet")
    loader = stream(path, columns=["id"])
    return {
        "path": path,
        "Path": Path(path),
        "paths": [path],
        "files": Files(path, format="parquet"),
        "kind": {"kind": "files", "path": path},
        "keywords": {"source": path, "columns": ["id"]},
        "keywords of a value": {"source": Files(path)},
        "keywords of a kind": {"source": {"kind": "Files", "path": path}, "count_rows": True},
        "config": OmegaConf.create({"source": path, "columns": ["id"]}),
        "loader": loader,
        "dataset": loader.dataset,
        "pair": StructuredDataset.create_dataloader(path, columns=["id"]),
        "combination": combine([path], columns=["id"]),
        "samples": [{"id": row} for row in PARTS["web"]],
    }


@pytest.mark.parametrize("kind", [
    "path", "Path", "paths", "files", "kind", "keywords", "keywords of a value", "keywords of a kind", "config",
    "loader", "dataset", "pair", "combination", "samples",
])  # fmt: skip
def test_each_kind_of_part_is_read_alike(folder: Path, kind: str) -> None:
    options: dict[str, Any] = {"columns": ["id"], "weights": [2, 1], "batch_size": 6, **ONE}
    code = str(folder / "code.parquet")
    expected = [batch["id"].tolist() for batch in combine([str(folder / "web.parquet"), code], **options)]
    found = [batch["id"].tolist() for batch in combine([kinds(folder)[kind], code], **options)]
    assert found == expected
    assert len(found[0]) == 6


def test_tables_are_parts(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "delta", pa.table({"id": range(10)}))
    write_deltalake(tmp_path / "delta", pa.table({"id": [99]}), mode="append")
    commit(tmp_path / "log", 1, data_file(tmp_path / "log", "a.parquet", range(20, 30), [3]))
    config = {"name": "test", **sql_config(tmp_path)}
    with SqlCatalog(**config) as catalog:
        catalog.create_namespace("ns")
        catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()})).append(pa.table({"id": range(30, 40)}))
        parts: dict[str, Any] = {
            "delta": {"source": Delta(tmp_path / "delta", version=0), "limit": 5},
            "iceberg": Iceberg("ns.t", catalog=config),
            "log": LogTable(tmp_path / "log"),
        }
        loader = combine(parts, columns=["id"], **ONE)
        assert sorted(ids(loader)) == [*range(5), *(row for row in range(20, 40) if row != 23)]
        parts["iceberg"] = Iceberg("ns.t", catalog=config, follow=True)
        with pytest.raises(OptionError, match="dataset 'iceberg' has follow=True"):
            combine(parts, columns=["id"], **ONE)
        text = combine({"t": Iceberg("ns.t", catalog=config)}).plan_page(tmp_path / "plan.html").read_text()
        assert "sqlite" not in text


def test_no_dataset_is_made_of_a_part_that_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    init = LoaderDataset.__init__

    def counting(self: LoaderDataset, *args: Any, **keywords: Any) -> None:
        made.append(type(self).__name__)
        init(self, *args, **keywords)

    monkeypatch.setattr(LoaderDataset, "__init__", counting)
    combine({"web": paths(folder)["web"], "code": {"source": paths(folder)["code"]}}, **ONE)
    assert made == ["CombinedDataset"]


# ---------------------------------------------------------------------------------------------------- keywords of parts


def test_what_is_of_the_parts_is_what_the_documentation_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "combine.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| `columns`"))
    assert set(re.findall(r"`(\w+)`", row.split(" | ")[0])) == of_parts()
    assert of_parts() < option_defaults("combine").keys()
    assert of_parts() < option_defaults("stream").keys()


def test_keywords_of_combine_are_the_defaults_of_its_parts(folder: Path) -> None:
    side = Subsets({"train": 0.5, "val": 0.5})["train"]
    given: dict[str, Any] = {"columns": ["id", "n"], "dtypes": {"n": "float32"}, "subset": side, "fraction": 0.8}
    loader = combine(paths(folder), batch_size=10, **given, **ONE)
    made = combine({name: stream(path, **given) for name, path in paths(folder).items()}, batch_size=10, **ONE)
    found = list(loader)
    assert [batch["id"].tolist() for batch in found] == [batch["id"].tolist() for batch in made]
    assert found[0]["n"].dtype == torch.float32
    assert 0 < len(ids(found)) < 60
    assert loader.describe().subset == made.describe().subset != ""
    assert loader.state_dict() == made.state_dict()


def test_a_part_s_own_keyword_wins(folder: Path) -> None:
    web, code = paths(folder).values()
    parts: Any = {"web": {"source": web, "limit": 7, "fraction": None}, "code": code}
    loader = combine(parts, limit=5, fraction=Sample(0.9), columns=["id"], **ONE)
    assert Counter(row < 1000 for row in ids(loader)) == {True: 7, False: 5}
    made = stream(web, limit=9)
    loader = combine({"web": made, "code": code}, limit=5, columns=["id", "word", "n", "x"], **ONE)
    assert Counter(row < 1000 for row in ids(loader)) == {True: 9, False: 5}  # made before: keeps its own


def test_filters_of_parts_are_counted_for_all_of_them(folder: Path) -> None:
    filters = [("n", "=", 0)]
    with pytest.raises(CountsRequiredError, match=r"that of dataset 'code' .*Use count_rows=True"):
        combine(paths(folder), filters=filters, **ONE)
    loader = combine(paths(folder), filters=filters, count_rows=True, even="drop", batch_size=2, **ONE)
    assert sorted(ids(loader)) == [*range(0, 61, 5), *range(1000, 1023, 5)]


@pytest.mark.parametrize("batches", ["proportional", "splits"])
def test_rows_of_datasets_that_were_made_before_are_counted(folder: Path, batches: str) -> None:
    """Each remedy that an error names works, whoever made the parts; what no scan can count has none of these."""
    options = {"batches": batches, "even": "drop", "batch_size": 2, **ONE}
    made = [stream(path, filters=[("n", "=", 0)]) for path in paths(folder).values()]
    with pytest.raises(CountsRequiredError, match="Use count_rows=True") as caught:
        combine(made, **options)
    for remedy in caught.value.remedies:
        changed = remedy.applied(options)
        if changed["batches"] == batches:
            assert len(list(combine(made, **changed)))
    resized = [*made, stream(paths(folder)["code"], transform=Transform(_as_is, rows="any"))]
    with pytest.raises(CountsRequiredError, match="may change the") as caught:
        combine(resized, **options, count_rows=True)
    for remedy in caught.value.remedies:
        assert "count_rows" not in remedy.given
        if remedy.given.get("batches") != "splits":
            assert next(iter(combine(resized, **remedy.applied({**options, "count_rows": True}))))


def _as_is(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (
            {"batch_size": 8, "shuffle": True, "columns": ["id"]},
            {},
            OptionError,
            "dataset 'web' has batch_size=8, shuffle=True, but all parts have one batch_size, shuffle: pass it to "
            "combine instead.",
        ),
        ({"weights": 3}, {}, OptionError, "dataset 'web' has weights=3, but all parts have one weights"),
        ({"column": ["id"]}, {}, UnknownOptionError, "unknown option 'column': did you mean 'columns'?"),
        ({"partitioning": None}, {}, UnknownOptionError, "not a keyword of stream, but of its source: stream(Files("),
        ({"limit": 0.5}, {}, OptionError, "limit=0.5"),
        ({"source": 3}, {}, OptionError, "source=3: expected a path"),
        ({}, {"schema": None}, UnknownOptionError, "'schema' belongs to what a part reads: Files(path, schema=...)."),
        ({}, {"ref": "x"}, UnknownOptionError, "'ref' belongs to what a part reads: Iceberg(table, ref=...)."),
        (
            {},
            {"as_of": 3},
            UnknownOptionError,
            "'as_of' belongs to what a part reads: Iceberg(table, as_of=...) or Delta(table, as_of=...).",
        ),
        ({}, {"pack": 8, "lists": "padded"}, OptionError, "lists='padded' with pack"),
        (
            {},
            {"even": "drop", "batch_tokens": 8, "count_rows": True},
            OptionError,
            "even='drop' with a mix by batch_tokens",
        ),
    ],
    ids=str,
)
def test_what_a_part_cannot_have(
    folder: Path, given: dict[str, Any], options: dict[str, Any], error: Any, message: str
) -> None:
    web, code = paths(folder).values()
    with pytest.raises(error, match=re.escape(message)):
        combine({"web": {"source": web, **given}, "code": code}, **options, **ONE)


def test_defaults_without_a_part_that_takes_them_are_an_error(folder: Path) -> None:
    made = [stream(path) for path in paths(folder).values()]
    with pytest.raises(OptionError, match=r"^columns=\['id'\], limit=3 would define what parts read, but all of them"):
        combine(made, columns=["id"], limit=3)
    with pytest.raises(OptionError, match="nulls='mask' would define"):
        combine([Plain(3)], nulls="mask")


def test_one_warning_names_all_that_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    web, code = paths(folder).values()
    given: dict[str, Any] = {"shuffle": True, "even": "pad", "batch_size": 8, "num_ranks": 2, "rank": 0, "limit": 5}
    parts = {"a": stream(web, **given), "b": stream(web, **given).dataset, "c": stream(code, prefetch_bytes=2**20)}
    combine({**parts, "d": stream(code), "e": code})
    (message,) = [record.getMessage() for record in caplog.records if "no effect" in record.message]
    assert message == (
        "options of datasets have no effect in a combination, which has its own: pass to combine num_ranks=2, rank=0, "
        "even='pad', shuffle=True, batch_size=8 of dataset 'a', dataset 'b'; prefetch_bytes=1048576 of dataset 'c'"
    )
    caplog.clear()
    combine(parts, shuffle=False, even=None, batch_size=4, prefetch_bytes="1MiB", **ONE)
    combine({"a": stream(web, columns=["id"], output_format="numpy", **ONE)}, output_format="numpy")
    combine({"a": combine([web], weights=[1], batches="splits")}, batches="splits")
    assert "no effect" not in caplog.text


# ----------------------------------------------------------------------------------------------------- one vocabulary


def test_parts_share_one_vocabulary(folder: Path) -> None:
    strings = {"word": "codes", "n": "codes"}
    parts: Any = {"web": {"source": paths(folder)["web"], "limit": 20}, "code": paths(folder)["code"]}
    loader = combine(parts, strings=strings, columns=["id", "word", "n"], batch_size=9, shuffle=True, **ONE)
    words = loader.vocabulary("word")
    assert words == sorted({"both", *(f"{name} {rest}" for name in PARTS for rest in range(3))})
    assert loader.vocabularies() == {"word": words, "n": [0, 1, 2, 3, 4]}
    for batch in loader:
        for row, word, number in zip(*(batch[key].tolist() for key in ("id", "word", "n")), strict=True):
            assert words[word] == (f"{'web' if row < 1000 else 'code'} {row % 3}" if row % 2 else "both")
            assert number == row % 5
    other = combine([stream(paths(folder)["web"], strings=Codes(loader.vocabularies()))], **ONE)
    assert other.vocabulary("word") == words


def test_text_of_other_types_shares_a_vocabulary_too(tmp_path: Path) -> None:
    for name, kind, values in (("a", pa.large_string(), ["x", "z"]), ("b", pa.string(), ["y"])):
        pq.write_table(pa.table({"word": pa.array(values, kind)}), tmp_path / f"{name}.parquet")
    loader = combine([tmp_path / "a.parquet", tmp_path / "b.parquet"], strings="codes", nulls="drop", batches="splits")
    assert loader.vocabulary("word") == ["x", "y", "z"]
    assert sorted(code for batch in loader for code in batch["word"].tolist()) == [0, 1, 2]


def test_what_was_made_before_keeps_its_vocabulary(folder: Path) -> None:
    web, code = paths(folder).values()
    made = stream(web, strings="codes", columns=["id", "word"])
    before = made.vocabulary("word")
    with pytest.raises(OptionError, match="the codes of the key 'word' have other meanings in dataset 0"):
        combine([made, code], strings="codes", columns=["id", "word"])
    assert made.vocabulary("word") == before
    given = {"source": code, "strings": Codes({"word": ["both"]}, unknown=-1)}
    with pytest.raises(OptionError, match="have other meanings"):
        combine([web, given], strings="codes", columns=["id", "word"])


# ------------------------------------------------------------------------------ states, numbers of ranks, and processes

MIX: dict[str, Any] = {"weights": {"web": 2, "code": 1}, "stop": "all", "split_rows": 6, "shuffle": True}
GIVEN: dict[str, Any] = {"columns": ["id", "word"], "strings": "codes", "count_rows": True, "fraction": 0.9}


def mixed(folder: Path, **options: Any) -> StructuredLoader:
    """A loader of two parts with keywords of their own."""
    web, code = paths(folder).values()
    parts: dict[str, Any] = {
        "web": {"source": web, "filters": [("id", "<", 50)]},
        "code": {"source": Files(code), "fraction": None, "transform": doubled},
    }
    return combine(parts, **{"batch_size": 6, **MIX, **GIVEN, **options})


@pytest.mark.parametrize("worker_mode", ["threads", "processes"])
def test_resume_at_every_step_is_exact(folder: Path, worker_mode: str) -> None:
    workers = {"num_workers": 2, "worker_mode": worker_mode} if worker_mode == "processes" else {"num_workers": 0}
    loader = mixed(folder, **workers, num_ranks=2, rank=1)
    loader.set_epoch(1)
    expected, states = [], []
    for batch in loader:
        expected.append(batch["id"].tolist())
        states.append(loader.state_dict())
    assert max(map(max, expected)) >= 2000
    loader.close()
    resumed = mixed(folder, **workers, num_ranks=2, rank=1)
    for step, state in list(enumerate(states, 1))[:: 1 if worker_mode == "threads" else 5]:
        resumed.load_state_dict(state)
        assert [batch["id"].tolist() for batch in resumed] == expected[step:]
    resumed.close()


@pytest.mark.parametrize(("ranks", "then"), [(1, 3), (2, 1), (3, 2)])
def test_an_elastic_resume_delivers_the_rows_of_the_epoch(folder: Path, ranks: int, then: int) -> None:
    expected = Counter(ids(mixed(folder, **ONE)))
    taken: list[int] = []
    state = None
    for now, steps in ((ranks, 3), (then, None)):
        after = None
        for rank in range(now):
            loader = mixed(folder, num_ranks=now, rank=rank)
            if state is not None:
                loader.load_state_dict(state)
            taken += ids([batch for _, batch in zip(range(steps or 1000), loader, strict=False)])
            after = loader.state_dict()
        state = after
    assert Counter(taken) == expected


def test_a_pickled_dataset_reads_the_same(folder: Path) -> None:
    loader = mixed(folder, **ONE)
    assert ids(pickle.loads(pickle.dumps(loader.dataset))) == ids(loader)


# -------------------------------------------------------------------------------------- weights that do not always show


WEIGHTS = {"weights": {"web": 1, "code": 1}}
MERGED = {**WEIGHTS, "batches": "splits"}


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, "(61 rows)"),
        ({"weights": {"web": 61, "code": 23}}, "(61 rows)"),
        (WEIGHTS, "; by weight until 'code' ends: from step 4 on, batches have more of the others"),
        (
            {**WEIGHTS, "repeat": {"code": 2}},
            " by weight until 'code' ends: from step 9 on, batches have more of the others",
        ),
        ({**WEIGHTS, "stop": "all"}, "(61 rows)"),
        ({"batches": "splits", "shuffle": True}, "'web' (61 rows)"),
        (MERGED, "'web' (61 rows)"),
        ({**MERGED, "shuffle": True}, "each rank shuffles all its rows in one window, in which weights do not show"),
        ({**MERGED, "shuffle_buffer_size": 9}, "; rows are shuffled within windows, in which weights do not show"),
    ],
    ids=str,
)
def test_describe_says_from_where_on_weights_do_not_show(folder: Path, options: dict[str, Any], end: str) -> None:
    loader = combine(paths(folder), **{"columns": ["id"], "batch_size": 10, **ONE, **options})
    assert loader.describe().mix.endswith(end)


def test_the_step_is_that_at_which_a_dataset_ends(folder: Path) -> None:
    loader = combine(paths(folder), weights={"web": 1, "code": 1}, columns=["id"], batch_size=10, **ONE)
    shares = [int((batch["id"] >= 1000).sum()) for batch in loader]
    assert shares == [5, 5, 5, 5, 3, 0, 0, 0, 0]


def test_weights_without_any_effect_are_an_error(folder: Path) -> None:
    given: dict[str, Any] = {"batches": "splits", "shuffle": "all", "columns": ["id"]}
    with pytest.raises(OptionError, match=r"^weights with batches='splits' and shuffle='all'") as caught:
        combine(paths(folder), weights={"web": 1, "code": 2}, **given)
    assert caught.value.remedies
    assert len(ids(combine(paths(folder), **given, **ONE))) == 84
    assert len(np.unique(ids(combine(paths(folder), weights={"web": 1, "code": 2}, columns=["id"], **ONE)))) == 84


# -------------------------------------------------------------------------------------------------- padding and budgets


@pytest.mark.parametrize("made", [False, True])
def test_a_budget_of_tokens_counts_the_padding_of_parts(tmp_path: Path, made: bool) -> None:
    for name in "ab":
        table = pa.table({"ids": [[1] * (row % 7 + 1) for row in range(60)]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=10)
    lists = {"lists": Padded(-1, multiple=8)}
    parts: Any = [tmp_path / f"{name}.parquet" for name in "ab"]
    parts = [stream(path, **lists) for path in parts] if made else parts
    options: dict[str, Any] = {"batch_tokens": 40, "batches": "splits", **({} if made else lists)}
    loader = combine(parts, **options, **ONE)
    assert "padded to multiples of 8" in loader.describe().buckets
    sizes = [batch["ids"]["values"].numel() for batch in loader]
    assert max(sizes) == 40
    nested = combine([loader_of(parts, made, lists)], batch_tokens=40, batches="splits", **ONE)
    assert max(batch["ids"]["values"].numel() for batch in nested) == 40


def loader_of(parts: Any, made: bool, lists: dict[str, Any]) -> StructuredLoader:
    """A combination that can be a part of another."""
    return combine(parts, batches="splits", **({} if made else lists))
