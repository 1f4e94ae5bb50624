"""States that an earlier commit wrote, with its own spellings, continue where they were taken, or are refused.

`states/3752582.json` has for each kind of loader its state after three steps, and the rows that were left, as that
commit delivered them. The data are text, whose bytes no library decides.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from torch_dataloader_utils import Buckets, Pack, Rotate, Shuffle, Strided, StructuredDataset, Subsets, combine
from torch_dataloader_utils.errors import CheckpointMismatchError

STATES = json.loads((Path(__file__).parent / "states" / "3752582.json").read_text())
COMMON = {"num_ranks": 2, "rank": 0, "batch_size": 4, "split_rows": 10, "num_workers": 0}
UNCOUNTED = {"count_rows": False, "split_rows": None}

NOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "rows": {"shuffle": True},
    "all": {"shuffle": "all"},
    "nearby": {"shuffle": Shuffle("nearby", window_rows=12)},
    "rotate": {"sharding": Rotate(4), "shuffle": True},
    "strided": {"sharding": Strided("batch")},
    "canonical": {"canonical_ranks": 4, "even": "drop"},
    "pad": {"even": "pad"},
    "subset": {"subset": Subsets({"a": 0.5, "b": 0.5}, by="id")["a"]},
    "fraction": {"fraction": 0.5},
    "class_weights": {"class_weights": {"label": {1: 2.5}}, **UNCOUNTED},
    "best_fit": {"pack": Pack(32, columns=["ids"]), "columns": ["ids"], **UNCOUNTED},
    "wrap": {"pack": Pack(32, columns=["ids"], method="wrap"), "columns": ["ids"], "shuffle": True},
    "buckets": {"batch_tokens": Buckets(40), "columns": ["id", "ids"], "shuffle": True, **UNCOUNTED},
}
COMBINED: dict[str, dict[str, Any]] = {
    "splits": {"batches": "splits"},
}
MIXED: dict[str, dict[str, Any]] = {  # by rows, which come in another order since then
    "mix": {},
    "mix_first": {"stop": "first", "weights": [1, 2, 3]},
    "curriculum": {"weights": [(0, [1, 1, 1]), (24, [3, 1, 1])], "rows_per_epoch": 90},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rows")
    for part in range(3):
        rows = [{"id": i, "label": i % 3, "ids": [i] * (1 + i * 7 % 11)} for i in range(part * 40, part * 40 + 40)]
        (made / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def left_after(loader: Any, state: Any, *, strict: bool = True) -> list[list[int]]:
    """The ids of each batch that a loader delivers after a state: of rows, or of tokens."""
    loader.load_state_dict(state, strict=strict)
    batches = []
    for batch in loader:
        ids = batch["id"] if "id" in batch else batch["ids"]
        batches.append((ids["values"] if isinstance(ids, dict) else ids).reshape(-1).tolist())
    return batches


@pytest.mark.parametrize("name", list(NOW))
def test_a_loader_continues(folder: Path, name: str) -> None:
    keywords = {**COMMON, "count_rows": True, **NOW[name]}
    loader, _ = StructuredDataset.create_dataloader(str(folder), **keywords)
    assert STATES[name]["left"] == left_after(loader, STATES[name]["state"])


def combined(folder: Path, **options: Any) -> Any:
    parts = [
        StructuredDataset.create_dataloader(str(path), columns=["id"], num_workers=0, count_rows=True)[1]
        for path in sorted(folder.iterdir())
    ]
    return combine(parts, **COMMON, shuffle=True, **options)


@pytest.mark.parametrize("name", list(COMBINED))
def test_a_combination_continues(folder: Path, name: str) -> None:
    loader = combined(folder, **COMBINED[name])
    assert STATES[name]["left"] == left_after(loader, STATES[name]["state"])


@pytest.mark.parametrize("name", list(MIXED))
def test_a_mix_is_refused_with_the_reason(folder: Path, name: str) -> None:
    loader = combined(folder, **MIXED[name])
    with pytest.raises(CheckpointMismatchError, match="plan version: 4 in the state, 6 here"):
        loader.load_state_dict(STATES[name]["state"])


@pytest.mark.parametrize("name", ["mix", "mix_first"])
def test_what_is_left_of_an_older_mix_cannot_be_told(folder: Path, name: str) -> None:
    loader = combined(folder, **MIXED[name])
    with pytest.raises(CheckpointMismatchError, match="start the epoch again, or finish it with that release"):
        left_after(loader, STATES[name]["state"], strict=False)


def test_every_state_is_read() -> None:
    assert STATES.keys() == NOW.keys() | COMBINED.keys() | MIXED.keys()
