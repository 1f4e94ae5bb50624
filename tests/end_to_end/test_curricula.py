"""Weights that change in the course of a run, from files to batches: shares, laps, resume, elasticity, refusals."""

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.sharded import ids, structured
from torch_dataloader_utils import Weights, combine
from torch_dataloader_utils.errors import CheckpointMismatchError, EmptyDatasetError, OptionError

ROWS = {"web": 61, "code": 23}
NINE, EQUAL = {"web": 9, "code": 1}, {"web": 1, "code": 1}
CHANGE = [(0, {"web": 9, "code": 1}), (90, {"web": 1, "code": 1}), (150, {"web": 0, "code": 1})]
MIX: dict[str, Any] = {"split_rows": 6, "shuffle": True, "shuffle_buffer_size": 12}
MIX |= {"weights": Weights(CHANGE, at="row")}
EPOCH = {"rows_per_epoch": 120}  # epoch 0: 90 rows of the first phase, 30 of the second; epoch 1: 30 and 90


def value(values: Any, **fields: Any) -> dict[str, Any]:
    """Weights as a config file has them."""
    return {"kind": "weights", "values": values, **fields}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("curricula")
    for number, (name, rows) in enumerate(ROWS.items()):
        table = pa.table({"id": np.arange(rows) + 1000 * number})
        pq.write_table(table, path / f"{name}.parquet", row_group_size=3)
    return {name: structured(path / f"{name}.parquet") for name in ROWS}


def counts(rows: list[int]) -> tuple[int, int]:
    code = sum(row >= 1000 for row in rows)
    return len(rows) - code, code


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_batches_follow_the_phases_on_every_rank(datasets: Any, ranks: int, workers: dict[str, Any]) -> None:
    """Rows are counted over all ranks; a boundary is the end of a batch here."""
    taken: Counter[int] = Counter()
    for epoch, expected in enumerate((((81, 9), (15, 15)), ((15, 15), (0, 90)))):
        found = []
        for rank in range(ranks):
            loader = combine(datasets, num_ranks=ranks, rank=rank, batch_size=5, **EPOCH, **MIX, **workers)
            loader.set_epoch(epoch)
            found.append(ids(loader))
            loader.close()
        taken.update(row for rows in found for row in rows)
        border = sum(expected[0]) // ranks
        for first, last, whole in ((0, border, expected[0]), (border, 120 // ranks, expected[1])):
            assert counts([row for rows in found for row in rows[first:last]]) == whole
            for end in range(first, last + 1, 5):
                rows = [row for rows in found for row in rows[first:end]]
                assert all(
                    abs(a - Fraction(len(rows) * b, sum(whole))) <= 1 for a, b in zip(counts(rows), whole, strict=True)
                )
    assert sum(taken.values()) == 240
    for first, size in ((0, 61), (1000, 23)):
        times = [taken[first + row] for row in range(size)]
        assert max(times) - min(times) <= 1  # 111 of 61, and 129 of 23


def test_threads_processes_and_the_caller_deliver_the_same(datasets: Any) -> None:
    """One process reads all datasets: their blocks in the order in which batches need them."""
    found = []
    for workers in ({"num_workers": 0}, {}, {"num_workers": 1, "worker_mode": "processes"}):
        loader = combine(datasets, num_ranks=1, rank=0, batch_size=10, **EPOCH, **MIX, **workers)
        found.append([ids(loader) for _ in range(2)])
        loader.close()
    assert found[0] == found[1] == found[2]


MODES: list[dict[str, Any]] = [
    {**EPOCH, "batch_size": 7},
    {**EPOCH, "batch_size": 7, "even": "pad"},
    {**EPOCH, "batch_size": 7, "even": "drop"},
    {"batch_size": 8, "last_batch": "drop"},
    {"repeat": {"code": 2.5}, "batch_size": 5},
    {
        **EPOCH,
        "batch_size": 7,
        "even": "drop",
        "weights": [(0, NINE), (11, {**NINE, "web": 1})],
    },
]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("epoch", [0, 1])
def test_resume_at_every_step_is_exact(datasets: Any, mode: dict[str, Any], epoch: int) -> None:
    options = {**MIX, **mode, "num_ranks": 2, "rank": 1, "num_workers": 0}
    loader = combine(datasets, **options)
    loader.set_epoch(epoch)
    expected, states = [], []
    for batch in loader:
        expected.append(batch["id"].tolist())
        states.append(loader.state_dict())
    following = [batch["id"].tolist() for batch in loader]
    resumed = combine(datasets, **options)
    for step, state in enumerate(states, 1):
        resumed.load_state_dict(state)
        assert [batch["id"].tolist() for batch in resumed] == expected[step:]
    assert [batch["id"].tolist() for batch in resumed] == following


def run(datasets: Any, ranks: int, steps: int | None, state: Any, **options: Any) -> tuple[list[int], Any]:
    """The rows of a few steps on all ranks, and the state after them."""
    taken: list[int] = []
    for rank in range(ranks):
        loader = combine(datasets, num_ranks=ranks, rank=rank, num_workers=0, **{**MIX, **options})
        if state is None:
            loader.set_epoch(0)
        else:
            loader.load_state_dict(state)
        batches = [batch for _, batch in zip(range(steps or 1000), loader, strict=False)]
        taken += [row for batch in batches for row in batch["id"][batch.get("valid", slice(None))].tolist()]
        after = loader.state_dict()
    return taken, after


@pytest.mark.parametrize("mode", [EPOCH, {**EPOCH, "even": "drop"}, {**EPOCH, "even": "pad"}, {}], ids=str)
@pytest.mark.parametrize(("ranks", "then"), [(1, 3), (2, 1), (3, 2)])
def test_an_elastic_resume_loses_nothing_and_keeps_the_boundary(
    datasets: Any, mode: dict[str, Any], ranks: int, then: int
) -> None:
    border = 90 if mode else 60
    mode = mode or {"weights": Weights([(0, NINE), (60, EQUAL)], at="row")}
    expected, _ = run(datasets, 1, None, None, **{**mode, "even": "none"}, batch_size=10)
    taken, state = run(datasets, ranks, 2, None, **mode, batch_size=6)
    left = border - len(taken)  # of the first phase
    more, after = run(datasets, then, 3, state, **mode, batch_size=left // then // 3)
    assert len(more) == left - left % (3 * then)
    assert abs(counts(taken + more)[1] - border / 10) <= 2
    rest, _ = run(datasets, 1, None, after, **{**mode, "even": "none"}, batch_size=5)
    assert Counter(taken + more + rest) == Counter(expected)
    if border == 90:
        second = rest[left % (3 * then) :]
        assert len(second) == 30
        assert abs(counts(second)[1] - 15) <= 3


def test_the_next_epoch_after_an_elastic_resume_is_that_of_the_curriculum(datasets: Any) -> None:
    _, state = run(datasets, 2, 2, None, **EPOCH, batch_size=6)
    loader = combine(datasets, num_ranks=1, rank=0, num_workers=0, batch_size=10, **EPOCH, **MIX)
    loader.load_state_dict(state)
    list(loader)
    other = combine(datasets, num_ranks=1, rank=0, num_workers=0, batch_size=10, **EPOCH, **MIX)
    other.set_epoch(1)
    assert ids(loader) == ids(other)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("even", ["none", "drop", "pad"])
@pytest.mark.parametrize("start", [1, 6, 7, 11])
def test_weights_change_at_a_step_of_the_run(datasets: Any, ranks: int, even: str, start: int) -> None:
    """The first `start` batches of each rank are of one dataset, over the end of an epoch and its short step, too."""
    weights = [(0, {"web": 1, "code": 0}), (start, {"web": 0, "code": 1})]
    options = {"weights": weights, "rows_per_epoch": 31 * ranks + 1, "batch_size": 5, "even": even, "num_ranks": ranks}
    for rank in range(ranks):
        loader = combine(datasets, rank=rank, **options)
        run = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            run += [counts(batch["id"][batch.get("valid", slice(None))].tolist()) for batch in loader]
        first, after = [web for web, _ in run], [code for _, code in run]
        assert not any(after[:start])
        assert not any(first[start:])
        assert all(first[:start])
        assert f"from step {start:,} (row " in loader.describe().mix


def test_an_elastic_resume_refuses_other_steps_and_names_their_rows(datasets: Any) -> None:
    """A step has other rows then. At the rows that the error names, weights change as they would have."""
    steps = {"weights": [(0, NINE), (9, EQUAL)]}
    expected, _ = run(datasets, 2, None, None, **EPOCH, **steps, batch_size=5)
    taken, state = run(datasets, 2, 2, None, **EPOCH, **steps, batch_size=5)
    for ranks, batch_size in ((1, 5), (2, 4), (3, 5)):
        with pytest.raises(CheckpointMismatchError, match=r"steps \[0, 9\].* by 2 ranks with batch_size=5") as refused:
            run(datasets, ranks, None, state, **EPOCH, **steps, batch_size=batch_size)
        assert "weights=Weights([(0, ...), (90, ...)], at='row')." in str(refused.value)
        rows = {"weights": Weights([(0, NINE), (90, EQUAL)], at="row")}
        rest, _ = run(datasets, ranks, None, state, **EPOCH, **rows, batch_size=batch_size)
        assert Counter(taken + rest) == Counter(expected)
    loader = combine(datasets, num_ranks=2, rank=0, **{**MIX, **EPOCH, **steps, "batch_size": 5})
    whole, _ = run(datasets, 1, None, loader.state_dict(), **EPOCH, **steps, batch_size=5)  # nothing was delivered yet
    assert len(whole) == 120
    same, _ = run(datasets, 1, None, state, **EPOCH, **steps, batch_size=10)  # as many rows per step
    assert Counter(taken + same) == Counter(expected)
    _, state = run(datasets, 2, 2, None, **EPOCH, **steps, batch_size=7)
    with pytest.raises(CheckpointMismatchError, match="and even='none', and here are 2 with 7 and 'drop'"):
        run(datasets, 2, None, state, **EPOCH, **steps, batch_size=7, even="drop")


def test_weights_that_only_order_rows_read_each_once(datasets: Any) -> None:
    """First web alone, as far as it goes; then what is left in equal parts; weight 0 comes last."""
    weights = [(0, {"web": 1, "code": 0}), (40, {"web": 1, "code": 1}), (60, {"web": 0, "code": 1})]
    loader = combine(datasets, num_ranks=1, rank=0, batch_size=10, **{**MIX, "weights": Weights(weights, at="row")})
    batches = [batch["id"].tolist() for batch in loader]
    assert [counts(batch) for batch in batches] == [(10, 0)] * 4 + [(5, 5)] * 2 + [(0, 10), (7, 3), (4, 0)]
    assert len(set(ids(loader))) == 84
    assert "from step 4 (row 40) on 50.0% 'code', 50.0% 'web'" in loader.describe().mix


def test_describe_says_what_an_epoch_takes_and_when_weights_change(datasets: Any) -> None:
    dataset = combine(datasets, num_ranks=2, rank=0, batch_size=5, **EPOCH, **MIX).dataset
    assert dataset.describe(1).mix == (
        "each batch has rows of each, in epoch 1: 87.5% 'code' (105 rows, 4.57 laps), 12.5% 'web' (15 rows, 0.246 laps)"
        "; from step 0 (row 0) on 10.0% 'code', 90.0% 'web'; from step 9 (row 90) on 50.0% 'code', 50.0% 'web'; "
        "from step 15 (row 150) on 100.0% 'code', 0.0% 'web'"
    )
    assert dataset.describe(0).not_delivered == 0
    many = [(row, EQUAL) for row in range(7)]
    dataset = combine(datasets, num_ranks=1, rank=0, **EPOCH, **{**MIX, "weights": Weights(many, at="row")}).dataset
    assert dataset.describe().mix.endswith("from step 0 (row 3) on 50.0% 'code', 50.0% 'web'; and 3 more changes")


def test_combinations_may_be_parts_but_their_weights_are_constant(datasets: Any) -> None:
    text = combine(datasets, weights={"web": 3, "code": 1})
    weights = [(0, {"text": 1, "code": 0}), (60, {"text": 1, "code": 1})]
    loader = combine(
        {"text": text, "code": datasets["code"]}, weights=Weights(weights, at="row"), rows_per_epoch=120, batch_size=20,
        num_ranks=1, rank=0, source_key="source",
    )  # fmt: skip
    shares = [Counter(batch["source"].tolist()) for batch in loader]
    assert shares[:3] == [{1: 5, 2: 15}] * 3  # the order of names: code, text/code, text/web
    assert all(abs(count[0] - 10) <= 1 for count in shares[3:])
    assert sum(count[0] for count in shares) == 30
    with pytest.raises(OptionError, match="combination 'text' has weights that change"):
        combine({"text": combine(datasets, weights=weights_of("web", "code")), "code": datasets["code"]})


def weights_of(one: str, other: str) -> list[Any]:
    return [[0, {one: 1, other: 0}], [60, {one: 1, other: 1}]]  # lists, as in a config file


def test_a_changed_curriculum_begins_a_new_phase_of_the_same_rows(datasets: Any) -> None:
    expected, _ = run(datasets, 1, None, None, **EPOCH, batch_size=10)
    taken, state = run(datasets, 1, 4, None, **EPOCH, batch_size=10)
    for changed in (
        {"weights": EQUAL},
        {"weights": Weights([(0, EQUAL), (60, {"web": 1, "code": 0})], at="row")},
    ):
        rest, _ = run(datasets, 1, None, state, **EPOCH, batch_size=10, **changed)
        assert Counter(taken + rest) == Counter(expected)
        assert abs(counts(rest[:20])[1] - 10) <= 1
    _, state = run(datasets, 1, 4, None, **EPOCH, batch_size=10, weights=EQUAL)
    rest, _ = run(datasets, 1, None, state, **EPOCH, batch_size=10)
    assert abs(counts(rest[:40])[0] - 36) <= 2


@pytest.mark.parametrize(
    "damage",
    [
        {"phases": [[0, ["1"]], [5, ["1", "x"]]]},
        {"phases": [[0, ["0", "0"]]]},
        {"phases": [[0, ["1", "1/0"]]]},
        {"phases": []},
        {"phases": [[-1, ["1", "1"]]]},
        {"total": 0},
        {"total": None},
        {"unit": "row"},
    ],
    ids=str,
)
def test_a_damaged_state_is_an_error(datasets: Any, damage: dict[str, Any]) -> None:
    _, state = run(datasets, 1, 4, None, **EPOCH, batch_size=10)
    state = {name: value for name, value in state.items() if name != "digest"}
    state["links"][-1]["options"]["mixing"].update(damage)
    with pytest.raises(CheckpointMismatchError):
        run(datasets, 1, None, state, **EPOCH, batch_size=5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": [(1, [1, 1])]}, OptionError, "the first of them from 0 on"),
        ({"weights": [(0, [1, 1]), (0, [1, 2])]}, OptionError, "starts that grow"),
        ({"weights": [(0.0, [1, 1])]}, OptionError, "the first of them from 0 on"),
        ({"weights": [(0, [1, 1]), 3]}, OptionError, "only pairs"),
        ({"weights": [(0, [1, -1])]}, OptionError, "numbers of at least 0"),
        ({"weights": [(0, [1, float("nan")])]}, OptionError, "numbers of at least 0"),
        ({"weights": [(0, 3), (5, 2)]}, OptionError, "numbers of at least 0, got 3"),
        ({"weights": [(0, [1, 1], 3)]}, OptionError, "only pairs: "),
        ({"weights": [(False, [1, 1])]}, OptionError, "the first of them from 0 on"),
        ({"repeat": {"web": 0.001, "code": 0.001}}, OptionError, "an epoch would have no row"),
        ({"weights": [(0, [0, 0])]}, OptionError, "a number above 0 for some dataset"),
        ({"weights": [(0, {"web": 1})]}, OptionError, "but 'code' has none"),
        ({"weights": [(0, [1, 1, 1])]}, OptionError, "for 2 dataset"),
        ({"weights": {0: [1, 1], 500: [1, 2]}}, OptionError, r"are a list of pairs: weights=\[\(0, ...\), \(500"),
        ({"weights": value([2, 1], at="row")}, OptionError, "at='row' belongs to weights that change"),
        ({"weights": value(CHANGE, at="rows")}, OptionError, "at='rows'.*'step'"),
        ({"stop": "all"}, OptionError, "stop='all' with weights that change.*rows_per_epoch="),
        ({"stop": "first"}, OptionError, "stop='first' with weights that change"),
        ({"batches": "single"}, OptionError, "batches='single' with weights that change"),
        ({"batches": "splits"}, OptionError, "batches='splits' with weights that change"),
        ({"weights": value(CHANGE, max_repeats=2), **EPOCH}, OptionError, "max_repeats=2 with weights that change"),
        ({"weights": value(CHANGE, temperature=2), **EPOCH}, OptionError, "temperature=2 with values"),
        ({"rows_per_epoch": 10**6}, OptionError, "900,000 rows of dataset 'web', which has 61.* smaller rows_per"),
    ],
    ids=str,
)
def test_what_cannot_change_is_an_error(datasets: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        combine(datasets, **{**MIX, **options})


def test_a_dataset_without_rows_may_not_have_weight(datasets: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    nothing = structured(tmp_path / "a.parquet", filters=[("id", "<", 0)], count_rows=True)
    with pytest.raises(EmptyDatasetError, match="dataset 1 has no rows"):
        combine([datasets["web"], nothing], weights=[(0, [1, 0]), (9, [1, 1])], rows_per_epoch=20)


def test_a_combination_without_rows_may_have_weight_only_in_the_order(datasets: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    nothing = structured(tmp_path / "a.parquet", filters=[("id", "<", 0)], count_rows=True)
    parts = [datasets["web"], combine([nothing, nothing])]
    weights = [(0, [0, 1]), (9, [1, 0])]
    loader = combine(parts, weights=weights, num_ranks=1, rank=0)
    assert len(ids(loader)) == 61
    with pytest.raises(EmptyDatasetError, match="dataset '1/0' has no rows"):
        combine(parts, weights=weights, rows_per_epoch=20)
