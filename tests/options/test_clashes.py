"""Options that exclude each other: each row of the table raises, its remedies work, and so does each of its sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import (
    Iceberg,
    Pack,
    Rotate,
    Sample,
    Shard,
    Shuffle,
    Split,
    Strided,
    StructuredDataset,
    Subsets,
    Transform,
    Weights,
    combine,
)
from torch_dataloader_utils.errors import DataLoaderUtilsError, Remedy
from torch_dataloader_utils.options import Options, clashes, parse_call, parse_combination, parse_part
from torch_dataloader_utils.options.clash import Clash, Half
from torch_dataloader_utils.options.clashes import CLASHES
from torch_dataloader_utils.options.late_clashes import LATER

DOCS = Path(__file__).parents[2] / "docs" / "options-exclude.md"
Keywords = dict[str, Any]


class Generates:
    """A strategy that gives each rank one shard of all files."""

    def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Shard]:
        return [Shard(0, tuple(Split(file) for file in files[rank::num_ranks]))]


class Empties:
    """A transform that makes empty rows of some, as ChatTemplate(long="drop") does."""

    empties_rows = True

    def __call__(self, batch: Any) -> Any:
        return batch


TWO = {"datasets": 2}
WRAPPED = Pack(16, method="wrap")
# What has each side, alone; of facts, the path to read, the number of datasets to combine, or the part that it is.
SIDES: Mapping[Half, Keywords] = {
    clashes.BEST_FIT: {"pack": 16},
    clashes.BY_ROWS: {**TWO, "weights": Weights([1, 2], unit="row")},
    clashes.BY_TOKENS: {**TWO, "weights": Weights([(0, [1, 2]), (5, [2, 1])], at="token"), "pack": WRAPPED},
    clashes.BUFFER: {"shuffle_buffer_size": 10},
    clashes.CANONICAL: {"canonical_ranks": 2},
    clashes.COMBINES: {"datasets": 1},
    clashes.COUNT_ROWS: {"count_rows": True},
    clashes.CUT_BY_ROWS: {"sharding": "contiguous"},
    clashes.CUT_OFF: {"pack": {"length": 16, "method": "wrap"}},
    clashes.DEVICE: {"device": "cpu"},
    clashes.EMPTIES: {"transform": Empties()},
    clashes.EVEN: {"even": "drop"},
    clashes.EVEN_COUNTED: {"even": "drop"},
    clashes.EVEN_LEAVES_OUT: {"even": "drop"},
    clashes.EVEN_OTHER: {"even": "drop"},
    clashes.EVEN_PAD: {"even": "pad"},
    clashes.FILESYSTEM: {"filesystem": fsspec.filesystem("file")},
    clashes.FOLLOW: {"follow": True},
    clashes.GENERATES: {"split_strategy": Generates()},
    clashes.GIVEN_WEIGHTS: {**TWO, "weights": [1, 2]},
    clashes.GPU: {"device": "cuda"},
    clashes.IN_MEMORY: {"path": "memory://clashes"},
    clashes.JAGGED: {"jagged": {"x": ["ids"]}},
    clashes.LAPS_OF_PROCESSES: {"steps_per_epoch": 3, "worker_mode": "processes", "num_workers": 2},
    clashes.LAST: {"last_batch": "pad"},
    clashes.LAST_ALONE: {"last_batch": "drop"},
    clashes.LAST_DROP: {"last_batch": "drop"},
    clashes.LAST_PAD: {"last_batch": "pad"},
    clashes.LAST_WRAP: {"last_batch": "wrap"},
    clashes.LIMIT: {"limit": 10},
    clashes.LISTS: {"lists": "padded"},
    clashes.MADE: {"pack": WRAPPED},
    clashes.MERGED: {**TWO, "batches": "splits"},
    clashes.MERGED_IN_ANY_ORDER: {**TWO, "batches": "splits", "shuffle": "all"},
    clashes.MERGED_PACKED: {**TWO, "batches": "splits", "pack": WRAPPED},
    clashes.MIXED: {**TWO, "batches": "proportional"},
    clashes.MIXED_ROWS: {**TWO, "batches": "proportional"},
    clashes.NO_ARRAYS: {"output_format": "arrow"},
    clashes.NO_PACK: {},
    clashes.NO_TENSORS: {"output_format": "numpy"},
    clashes.NOT_PACKED: {"pack": None},
    clashes.NO_WORKERS: {},
    clashes.NUMBERS: {"num_ranks": 2, "rank": 0},
    clashes.PACK: {"pack": Pack(16)},
    clashes.OWN_SHARES: {"sharding": "rotate"},
    clashes.PARTITION: {"shuffle": "partition"},
    clashes.PART: {"part": "dataset 'a'"},
    clashes.PHASES: {**TWO, "weights": [(0, [1, 2]), (5, [2, 1])]},
    clashes.PINNED: {"pin_memory": True},
    clashes.PROCESSES: {"worker_mode": "processes"},
    clashes.RANKS: {"ranks": SimpleNamespace(num_processes=1, process_index=0)},  # as an Accelerator of one process
    clashes.REPEAT: {**TWO, "repeat": [1, 2]},
    clashes.RESIZES: {"transform": Transform(lambda batch: batch, rows="any")},
    clashes.ROWS_PER_EPOCH: {**TWO, "rows_per_epoch": 24},
    clashes.SAMPLE: {"fraction": Sample(0.9, by="id")},
    clashes.SEQUENCES: {"sequences": {"length": 2, "order": "id"}},
    clashes.SHAPED: {**TWO, "weights": Weights(temperature=2)},
    clashes.SINGLE: {**TWO, "batches": "single"},
    clashes.SKIPS: {"transform": Transform(lambda batch: batch, on_error="skip")},
    clashes.SOURCE_KEY: {**TWO, "source_key": "part"},
    clashes.SPLITS: {"shuffle": "splits"},
    clashes.SPLIT_BATCH: {"sharding": Strided("split_batch")},
    clashes.STACK: {"stack": {"x": ["id"]}},
    clashes.STEPS: {"steps_per_epoch": 3},
    clashes.STOP: {**TWO, "stop": "all"},
    clashes.STREAMS: {**TWO, "pack": 16, "tokens_per_epoch": 2**10},
    clashes.STREAMS_OF_STEPS: {**TWO, "pack": 16, "steps_per_epoch": 3, "batches": "proportional"},
    clashes.STORAGE: {"storage_options": {"auto_mkdir": False}},
    clashes.STRIDED: {"sharding": "strided"},
    clashes.SUBSET: {"subset": Subsets({"a": 0.5, "b": 0.5})["a"]},
    clashes.TOKENS: {"batch_tokens": 64},
    clashes.TOKENS_PER_EPOCH: {**TWO, "tokens_per_epoch": 2**10, "pack": WRAPPED},
    clashes.TOTAL_SHARDS: {"sharding": Rotate(2)},
    clashes.UNEQUAL: {"sharding": "rotate"},
    clashes.UNBOUNDED: {**TWO, "batches": "proportional"},
    clashes.UNEVEN: {**TWO, "batches": "single"},
    clashes.UNKNOWN: {"path": "lines"},
    clashes.UNPARTITIONED: {"path": "flat"},
    clashes.NO_ROW_COUNTS: {"path": "lines"},
    clashes.WEIGHTED: {"class_weights": {"label": {1: 2.5}}},
    clashes.WEIGHTS: {**TWO, "weights": [1, 2]},
    clashes.WINDOWS: {"shuffle": Shuffle(open_splits=2)},
    clashes.WRAP: {"pack": Pack(16, method="wrap")},
}
NEEDS = {
    clashes.PROCESSES: {"num_workers": 2},
    clashes.EMPTIES: {"pack": 16},
}  # what a side needs beside it, unless the row is about that


def side(half: Half) -> Keywords:
    """What has this side alone."""
    return {"split_rows": 3} if half.keyword == "split_rows" else SIDES[half]


def rows(table: tuple[Clash, ...]) -> list[Any]:
    """Each pair of sides of the rows."""
    pairs = [(clash, half) for clash in table for half in clash.halves]
    return [pytest.param(clash, half, id=f"{half.label} with {clash.beside.label}") for clash, half in pairs]


def given(clash: Clash, half: Half) -> tuple[Keywords, Keywords, Keywords]:
    """The keywords of both sides, and of each alone."""
    alone = {**NEEDS.get(half, {}), **side(half)}
    needs = {} if clash.beside in (clashes.NO_WORKERS, clashes.NO_PACK) else NEEDS.get(half, {})
    return {**needs, **side(half), **side(clash.beside)}, alone, side(clash.beside)


def error_of(call: Callable[..., Any], keywords: Keywords) -> DataLoaderUtilsError | None:
    try:
        call(**keywords)
    except DataLoaderUtilsError as error:
        return error
    return None


def parsed(datasets: int = 0, part: str = "", **keywords: Any) -> Options:
    """The options of a combination, of a part of one, of a table if it is followed, else of files."""
    if datasets:
        return parse_combination(keywords, datasets)[0]
    if part:
        table = Iceberg("n.t", follow=keywords.pop("follow", False))
        return parse_part(part, table, keywords, {}, parsed(datasets=2))
    return parse_call("iceberg" if "follow" in keywords else "files", "n.t", keywords)[1]


def holds(clash: Clash, half: Half, call: Callable[..., Any]) -> None:
    both, *alone = given(clash, half)
    error = error_of(call, both)
    assert type(error) is clash.error, error
    assert clash.why in str(error)
    assert error.remedies, error
    for remedy in error.remedies:
        changed = remedy.applied(both)
        assert changed != both
        assert (after := error_of(call, changed)) is None, f"{error}\n{remedy} leads to {after}"
    for keywords in alone:
        assert (wrong := error_of(call, keywords)) is None, wrong


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, as far as options look for one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("clash", "half"), rows(CLASHES))
def test_a_clash_is_an_error_whose_remedies_work_and_each_side_alone_works(clash: Clash, half: Half) -> None:
    holds(clash, half, parsed)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same rows in Parquet, in lines, and in the memory of this process."""
    place, memory = tmp_path_factory.mktemp("data"), fsspec.filesystem("memory")
    for name in ("files/day=1", "lines/day=1", "flat"):
        (place / name).mkdir(parents=True)
    table = pa.table({"id": range(40), "label": [row % 2 for row in range(40)]})
    for folder in (place / "files" / "day=1", place / "flat"):
        pq.write_table(table, folder / "part.parquet", row_group_size=5)
    (place / "lines" / "day=1" / "part.jsonl").write_text(
        "".join(f'{{"id": {row}, "label": {row % 2}}}\n' for row in range(40))
    )
    with memory.open("clashes/part.parquet", "wb") as file:
        pq.write_table(table, file)
    yield place
    memory.rm("clashes", recursive=True)


@pytest.mark.parametrize(("clash", "half"), rows(LATER))
def test_a_clash_that_shows_later_is_one_with_what_is_read(clash: Clash, half: Half, data: Path) -> None:
    def made(path: str = "files", datasets: int = 0, **keywords: Any) -> None:
        place = path if "://" in path else str(data / path)
        keywords = {"batch_size": 4, "num_workers": 0, "num_ranks": 2, "rank": 0, **keywords}
        if datasets:
            combine([place] * datasets, **keywords).plan()
        else:
            StructuredDataset.create_dataloader(place, **keywords)[1].plan()

    holds(clash, half, made)


def test_each_side_belongs_to_a_row() -> None:
    used = {half for clash in (*CLASHES, *LATER) for half in (*clash.halves, clash.beside)}
    assert SIDES.keys() <= used
    assert {name for name, item in vars(clashes).items() if isinstance(item, Half) and item not in used} == set()


def instead(remedy: Remedy) -> str:
    """A remedy in the documentation."""
    passed = " and ".join(f"`{name}={value!r}`".replace("'", '"') for name, value in remedy.given.items())
    left_out = " and ".join(f"`{name}`" for name in remedy.left_out)
    effect = f" ({remedy.effect})" if remedy.effect else ""
    return f"{passed}{' ' if passed and left_out else ''}{f'without {left_out}' if left_out else ''}{effect}"


def documented(clash: Clash) -> str:
    """A row of the table in the documentation."""
    both = given(clash, clash.halves[0])[0]
    ways = clash.ways(parsed(**side(clash.beside))) if clash in LATER and callable(clash.ways) else None
    error = error_of(parsed, both) if clash in CLASHES else clash.between("", ways=ways)
    assert error is not None
    halves = ", ".join(half.label for half in clash.halves)
    return f"| {halves} | {clash.beside.label} | {clash.why} | {'; '.join(map(instead, error.remedies))} |"


@pytest.mark.usefixtures("gpu")
def test_the_documentation_has_the_table() -> None:
    expected = list(dict.fromkeys(documented(clash) for clash in (*CLASHES, *LATER)))
    found = [line for line in DOCS.read_text().splitlines() if line.startswith("|")][2:]
    assert found == expected, "docs/options-exclude.md is to have these rows:\n" + "\n".join(expected)
