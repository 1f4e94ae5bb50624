"""`device=`: the same batches on a device, ahead of the loop, and states that count what was handed over."""

from __future__ import annotations

import gc
import pickle
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from tests.resume.helpers import KEPT, plain, through_json
from torch_dataloader_utils import (
    Fill,
    OptionError,
    Pack,
    Padded,
    Processes,
    StaleIteratorError,
    StructuredDataset,
    combine,
    merge_state_dicts,
)
from torch_dataloader_utils.iteration.foreign import check_device
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Hash,
    Impute,
    Log1p,
    MinMax,
    Preprocess,
    Robust,
    Standardize,
    TargetEncode,
)

ROWS = 120
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def table(first: int, rows: int) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table(
        {
            "id": ids,
            "maybe": pa.array([None if number % 7 == 0 else number for number in ids.tolist()], pa.int32()),
            "a": ids.astype(np.float32),
            "b": ids.astype(np.float32) * 2,
            "vector": pa.array([[0.5, float(number)] for number in ids], pa.list_(pa.float32(), 2)),
            "items": pa.array([list(range(number % 4)) for number in ids.tolist()], pa.list_(pa.int32())),
            "more": pa.array([[number] * (number % 3) for number in ids.tolist()], pa.list_(pa.int32())),
            "city": [("Oslo", "Lima", None)[number % 3] for number in ids.tolist()],
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """120 rows in three files of row groups of 10, 20 and 40 rows."""
    path = tmp_path_factory.mktemp("devices")
    for number, size in enumerate((10, 20, 40)):
        pq.write_table(table(number * 40, 40), path / f"part-{number}.parquet", row_group_size=size)
    return str(path)


FORMS: dict[str, dict[str, Any]] = {
    "dense": {"columns": ["id", "maybe", "vector", "city"], "nulls": "mask"},
    "ragged": {"columns": ["id", "items", "city"]},
    "padded": {"columns": ["id", "items"], "lists": Padded(multiple=4)},
    "nested": {"columns": ["id", "items"], "lists": "nested"},
    "stack": {"columns": ["id", "a", "b"], "stack": {"x": ["a", "b"]}},
    "jagged": {"columns": ["id", "items", "more"], "jagged": {"features": ["items", "more"]}},
    "bytes": {"columns": ["id", "city"], "strings": "bytes", "nulls": Fill({"city": ""})},
    "codes": {"columns": ["id", "city"], "strings": "codes", "nulls": Fill({"city": ""})},
    "packed": {"columns": ["items"], "pack": Pack(16, columns=["items"]), "batch_size": 2},
    "wrapped": {"columns": ["items"], "pack": Pack(16, columns=["items"], method="wrap"), "batch_size": 2},
    "by length": {"columns": ["id", "items"], "batch_tokens": 24, "lists": "padded"},
    "padded last": {"columns": ["id", "city"], "last_batch": "pad", "shuffle": True},
    "unknown counts": {"columns": ["id", "city"], "filters": KEPT},
}


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
each_device = pytest.mark.parametrize("device", DEVICES)


def make(folder: str, **options: Any) -> Any:
    nulls = {} if "columns" in options else {"nulls": "mask"}
    given = {"num_ranks": 1, "rank": 0, "num_workers": 0, "batch_size": 7, "split_rows": 20} | nulls | options
    return StructuredDataset.create_dataloader(folder, **given)[0]


def read(loader: Any) -> list[Any]:
    return [plain(unnested(batch)) for batch in loader]


def unnested(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [row.tolist() for row in value.unbind()] if isinstance(value, torch.Tensor) and value.is_nested else value
        for key, value in batch.items()
    }


def devices_of(value: Any) -> set[str]:
    """The types of device of all tensors in a batch."""
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {device for part in parts for device in devices_of(part)}


def rows_of(batches: list[Any]) -> list[int]:
    return [row for batch in batches for row in batch["id"]]


@each_device
@pytest.mark.parametrize("form", FORMS)
def test_batches_are_the_same(folder: str, form: str, device: str) -> None:
    plainly, loader = make(folder, **FORMS[form]), make(folder, device=device, **FORMS[form])
    for _ in range(2):
        expected = read(plainly)
        assert expected
        assert read(loader) == expected


@each_device
def test_what_is_where(folder: str, device: str) -> None:
    for form in FORMS.values():
        for batch in make(folder, device=device, **form):
            assert devices_of(batch) == {device}
            assert all(isinstance(batch[key], list) for key in ("city",) if key in batch and "strings" not in form)
    packed = next(iter(make(folder, device=device, **FORMS["packed"])))
    assert packed["cu_seqlens"].device.type == device
    assert isinstance(packed["max_seqlen"], int)


@each_device
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": None},
        pytest.param({"num_workers": 2, "worker_mode": Processes(context="fork")}, id="processes"),
    ],
)
def test_each_row_once_and_a_resume_at_every_step(
    folder: str, device: str, ranks: int, workers: dict[str, Any]
) -> None:
    """A state counts the batches handed over: the two that were cut ahead of it are among the rest."""
    seen: list[int] = []
    options = {"num_ranks": ranks, "shuffle": True, "columns": ["id", "city"], **workers}
    for rank in range(ranks):
        loader = make(folder, device=device, rank=rank, **options)
        whole, states = [], [loader.state_dict()]
        for batch in loader:
            whole.append(plain(batch))
            states.append(loader.state_dict())
        assert whole == read(make(folder, rank=rank, **options))
        seen += rows_of(whole)
        other = make(folder, device=device, rank=rank, **options)
        for taken, state in enumerate(states):
            other.load_state_dict(state)
            assert read(other) == whole[taken:]
    assert sorted(seen) == list(range(ROWS))


@each_device
@pytest.mark.parametrize("unknown", [False, True])
def test_the_rest_on_another_number_of_ranks(folder: str, device: str, unknown: bool) -> None:
    """Elastic: two ranks take some steps each; three, without the device, take the rest."""
    filters = {"filters": KEPT} if unknown else {}
    options = {"columns": ["id", "a", "b"], "num_workers": 2, **filters}
    expected = [row for row in range(ROWS) if row % 3 or not unknown]
    for taken in (1, 3, 4):
        seen, states = [], []
        for rank in range(2):
            loader = make(folder, device=device, num_ranks=2, rank=rank, **options)
            batches = iter(loader)
            seen += rows_of([plain(batch) for batch in islice(batches, taken)])
            states.append(loader.state_dict())
            batches.close()
        state = merge_state_dicts(states)
        for rank in range(3):
            loader = make(folder, num_ranks=3, rank=rank, **options)
            loader.load_state_dict(state)
            seen += rows_of(read(loader))
        assert sorted(seen) == expected


@each_device
def test_states_are_those_without_a_device(folder: str, device: str) -> None:
    """So a job may go on with another device, or none."""
    for options in ({}, {"filters": KEPT, "num_workers": 2}, {"filters": KEPT, "steps_per_epoch": 40}):
        here, there = make(folder, **options), make(folder, device=device, **options)
        pairs = zip(here, there, strict=True)
        for one, other in pairs:
            assert one["id"].tolist() == other["id"].tolist()
            assert through_json(there.state_dict()) == through_json(here.state_dict())


@each_device
def test_steps_per_epoch_reads_no_further(folder: str, device: str) -> None:
    """What is cut ahead ends where the pass does: no lap begins for it."""
    taken = {}
    for where in (None, device):
        loader = make(folder, device=where, batch_size=4, steps_per_epoch=30, columns=["id"])  # a lap
        blocks: list[Any] = []
        loader.dataset.on_event(lambda event, blocks=blocks: blocks.append(event))
        rows = rows_of(read(loader))
        taken[where] = rows, len(blocks)
    assert taken[None] == taken[device]


@each_device
def test_skipped_steps_are_left_out(folder: str, device: str) -> None:
    for options in ({}, {"filters": KEPT}):
        whole = read(make(folder, **options))
        loader = make(folder, device=device, **options)
        batches = iter(loader)
        found = [plain(next(batches)) for _ in range(2)]
        loader.skip_steps(3, 6)  # some of them have been cut
        found += [plain(batch) for batch in batches]
        assert found == whole[:3] + whole[6:]


@each_device
def test_a_combination(folder: str, device: str) -> None:
    for options in ({"batches": "proportional", "weights": [1, 2]}, {"batches": "single"}, {"batches": "splits"}):
        parts = [StructuredDataset.create_dataloader(folder, columns=["id", "city"])[1] for _ in range(2)]
        expected, found = (
            read(combine(parts, batch_size=6, num_workers=0, device=where, **options)) for where in (None, device)
        )
        assert expected
        assert found == expected


@each_device
@pytest.mark.parametrize("options", [{"canonical_ranks": 4}, {"even": "pad", "num_ranks": 3}, {"last_batch": "wrap"}])
def test_other_ways_to_make_batches(folder: str, device: str, options: dict[str, Any]) -> None:
    expected = read(make(folder, **{"batch_size": 8, **options}))
    assert read(make(folder, device=device, **{"batch_size": 8, **options})) == expected


@each_device
def test_an_error_takes_its_turn(folder: str, device: str) -> None:
    """The batches before it arrive, as they do without a device, and the state is after them."""

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and batch["id"][0].as_py() >= 60:
            raise ValueError("damaged")
        return batch

    taken = {}
    for where in (None, device):
        loader = make(folder, device=where, columns=["id"], transform=fails)
        found = []
        with pytest.raises(ValueError, match="damaged"):
            found.extend(plain(batch) for batch in loader)
        taken[where] = found, through_json(loader.state_dict())
    assert taken[None] == taken[device]
    assert len(taken[device][0]) > 2


@each_device
def test_collate_fn_gets_batches_on_the_device(folder: str, device: str) -> None:
    batches = list(make(folder, device=device, columns=["a"], collate_fn=lambda batch: (batch["a"] * 2).sum()))
    assert {total.device.type for total in batches} == {device}
    assert sum(total.item() for total in batches) == sum(range(ROWS)) * 2


@each_device
def test_a_pass_that_is_left_or_closed(folder: str, device: str) -> None:
    loader = make(folder, device=device, columns=["id"], num_workers=2)
    whole = read(loader)
    loader.dataset.set_epoch(0)
    kept = [batch for batch, _ in zip(loader, range(4), strict=False)]
    loader.dataset.close()
    assert [plain(batch) for batch in kept] == whole[:4]
    loader.dataset.set_epoch(0)
    assert read(loader) == whole
    batches = iter(loader)
    next(batches)
    batches.close()
    with pytest.raises(StaleIteratorError):
        next(batches)


@each_device
def test_a_dataset_that_was_pickled(folder: str, device: str) -> None:
    loader = make(folder, device=device)
    batches = iter(loader)
    first = [plain(next(batches)) for _ in range(3)]
    copy = pickle.loads(pickle.dumps(loader.dataset))
    copy.load_state_dict(loader.state_dict())
    rest = [plain(batch) for batch in copy]
    assert first + rest == read(make(folder))


@each_device
def test_threads_share_an_iterator(folder: str, device: str) -> None:
    batches, rows = iter(make(folder, device=device, columns=["id"], num_workers=2, batch_size=2)), []

    def take() -> None:
        for batch in batches:
            rows.extend(batch["id"].tolist())

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(rows) == list(range(ROWS))


def test_description_says_where(folder: str) -> None:
    assert "a dict of torch tensors on cpu, B = 7 rows" in str(make(folder, device="cpu").dataset.describe())
    assert " on " not in make(folder).dataset.describe().batch_type


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "mps", torch.device("meta"), 0, ["cuda"], b"cpu"])
def test_other_devices_are_refused(folder: str, device: Any) -> None:
    with pytest.raises(OptionError, match=r"device=.*expected 'cpu', 'cuda', 'cuda:N'"):
        make(folder, device=device)


@pytest.mark.parametrize("output", ["numpy", "arrow", "dict"])
def test_only_tensors_are_put_on_a_device(folder: str, output: str) -> None:
    with pytest.raises(OptionError, match=r"device='cpu' with output_format=.*only tensors"):
        make(folder, device="cpu", output_format=output)


@no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)])
def test_without_a_gpu_construction_fails(folder: str, device: Any) -> None:
    with pytest.raises(OptionError, match=r"needs a GPU.*Leave out device"):
        make(folder, device=device)


def test_gpus_are_not_for_workers_of_other_loaders(folder: str) -> None:
    dataset = make(folder, device="cpu").dataset
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(ROWS))
    check_device("cuda:1", None)
    check_device("cpu", (0, 2))
    check_device(None, (0, 2))
    with pytest.raises(OptionError, match=r"device='cuda:1' within 2 worker\(s\) of a foreign loader"):
        check_device("cuda:1", (0, 2))


@needs_gpu
def test_a_gpu_that_is_not_there(folder: str) -> None:
    with pytest.raises(OptionError, match=r"this process sees \d+ GPU"):
        make(folder, device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(OptionError, match="Leave out pin_memory"):
        make(folder, device="cuda", pin_memory=True)


@needs_gpu
def test_a_worker_of_torch_on_a_gpu(folder: str) -> None:
    loader = DataLoader(make(folder, device="cuda").dataset, batch_size=None, num_workers=1)
    with pytest.raises(OptionError, match="within 1 worker"):
        next(iter(loader))


@needs_gpu
def test_the_device_is_the_current_one_at_the_first_batch(folder: str) -> None:
    last = torch.cuda.device_count() - 1
    loader = make(folder, device="cuda", columns=["id"])
    with torch.cuda.device(last):
        assert next(iter(loader))["id"].device == torch.device("cuda", last)
    assert next(iter(loader))["id"].device == torch.device("cuda", last)
    assert next(iter(make(folder, device=f"cuda:{last}")))["id"].device.index == last


@needs_gpu
def test_copies_and_training_overlap_without_a_race(tmp_path: Path) -> None:
    """The loop's stream lags behind: memory is not used again before its work on it is done."""
    ids = np.arange(200_000)
    columns = {f"c{number}": ids + number for number in range(8)}
    pq.write_table(pa.table({"id": ids, **columns}), tmp_path / "part.parquet", row_group_size=10_000)
    loader = make(str(tmp_path), device="cuda", batch_size=500, split_rows=10_000, num_workers=2)
    for _ in range(3):
        sums = []
        for batch in loader:
            torch.cuda._sleep(1_000_000)  # cycles: half a millisecond
            sums.append(torch.stack([(batch[f"c{number}"] - batch["id"]).sum() for number in range(8)]))
        found = torch.stack(sums).sum(0).tolist()
        assert found == [number * 200_000 for number in range(8)]


@needs_gpu
def test_batches_on_a_stream_of_the_loop(folder: str) -> None:
    expected = read(make(folder, columns=["id", "items"]))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = [{**batch, "id": batch["id"] * 1} for batch in make(folder, columns=["id", "items"], device="cuda")]
    stream.synchronize()
    assert [plain(batch) for batch in found] == expected


@needs_gpu
def test_memory_of_a_closed_pass_is_free(folder: str) -> None:
    torch.zeros(1, device="cuda")
    gc.collect()
    before = torch.cuda.memory_allocated()
    loader = make(folder, device="cuda", num_workers=2)
    batches = iter(loader)
    kept = [next(batches) for _ in range(3)]
    assert torch.cuda.memory_allocated() > before
    batches.close()
    del kept, batches, loader
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@needs_gpu
def test_a_batch_is_normal_in_inference_mode(folder: str) -> None:
    loader = make(folder, device="cuda", columns=["a"])
    with torch.inference_mode():
        batch = next(iter(loader))
    weight = torch.ones(1, device="cuda", requires_grad=True)
    (batch["a"] * weight).sum().backward()
    assert weight.grad.item() == sum(range(7))


@each_device
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_module_of_a_preprocess_has_its_bits(device: str, dtype: Any) -> None:
    rows, rng = 5_000, np.random.default_rng(0)
    x = rng.normal(0, 1, rows) * 10.0 ** rng.integers(-300, 300, rows)
    x[:9] = [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 5e-324, 3.5e38, 1e308]
    i = rng.integers(-(2**63), 2**63 - 1, rows) >> rng.integers(0, 63, rows)
    given = pa.table(
        {
            "x": pa.array(x, mask=rng.random(rows) < 0.1),
            "i": pa.array(i, mask=rng.random(rows) < 0.1),
            "y": rng.random(rows),
            "s": rng.choice(["a", "b", None, "", "x" * 300], rows).tolist(),
            "t": pa.array(rng.integers(-(10**15), 10**15, rows), pa.timestamp("us")),
        }
    )
    spec = {
        "x": {
            "standard": [Impute("median", indicator=True), Standardize()],
            "scaled": MinMax(-1, 2, clip=True),
            "log": [Clip(quantiles=(0.01, 0.99)), Log1p(signed=True), Robust()],
            "bucket": Bucketize(quantiles=9),
        },
        "i": {"id": Categorize(unknown_ids=7), "hash": Hash(99, seed=3), "mean": TargetEncode("y", by="i")},
        "s": {"text": Categorize(nulls="category"), "text_hash": Hash(77)},
        ("i", "s"): Cross(Hash(1_000)),
        "t": DateParts("hour", "weekday", "dayofyear"),
    }  # fmt: skip
    prep = Preprocess(spec, dtype=dtype).fit(given)
    arrays = {name: torch.from_numpy(array).to(device) for name, array in prep.arrays(given).items()}
    found, expected = prep.to_module().to(device)(arrays), prep(given)
    assert list(found) == expected.column_names
    for name, tensor in found.items():
        assert tensor.device.type == device
        wanted = expected[name].to_numpy()
        missing = np.isnan(wanted)
        assert np.array_equal(np.isnan(tensor.cpu().numpy()), missing), name
        assert tensor.cpu().numpy()[~missing].tobytes() == wanted[~missing].tobytes(), name
