"""Lightning's Trainer with a plain loader and with the data module: rows, epochs, and the exact continuation."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.killing import ROWS, counted, finish, kill, lines, start, wait_for, write_rows
from tests.launchers.conftest import EXAMPLES, LEAVES_GLOO, Rows
from tests.launchers.pages import program
from tests.resume.helpers import KEPT, make, write_files
from torch_dataloader_utils import OptionError, StructuredDataset

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, of which there are many

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from torch_dataloader_utils.integrations.lightning import StructuredDataModule  # noqa: E402

EPOCHS = 3
Met = list[tuple[int, list[int]]]  # the epoch and the ids of each batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


class Recorder(lightning.LightningModule):
    """Trains nothing worth the name, and notes what it met."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.met: Met = []
        self.validated: list[int] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.met.append((self.current_epoch, batch["id"].tolist()))
        return self.weight * batch["id"].float().mean()

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated += batch["id"].tolist()

    def predict_step(self, batch: Any, _: int) -> list[int]:
        return batch["id"].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def trainer_of(out: Path, *, save: Any = None, **settings: Any) -> Any:
    saving = [] if save is None else [ModelCheckpoint(out, "{epoch}-{step}", save_top_k=-1, **save)]
    return lightning.Trainer(
        accelerator="cpu", devices=1, callbacks=saving, enable_checkpointing=save is not None, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=out,
        **{"max_epochs": EPOCHS} | settings,
    )  # fmt: skip


def fit(out: Path, given: Any, *, path: Path | None = None, save: Any = None, **settings: Any) -> Recorder:
    model = Recorder()
    trainer = trainer_of(out, save=save, **settings)
    if isinstance(given, StructuredDataModule):
        trainer.fit(model, datamodule=given, ckpt_path=path)
    else:
        trainer.fit(model, *given if isinstance(given, list) else [given], ckpt_path=path)
    return model


def given_of(folder: str, form: str, **options: Any) -> Any:
    loader = make(folder, shuffle=True, **options)
    return loader if form == "plain" else StructuredDataModule(train=loader)


def wanted(folder: str, most: int | None = None, **options: Any) -> Met:
    """What a plain loop meets."""
    loader = make(folder, shuffle=True, **options)
    found: Met = []
    for epoch in range(EPOCHS):
        loader.dataset.set_epoch(epoch)
        found += [(epoch, batch["id"].tolist()) for _, batch in zip(range(most or 999), loader, strict=False)]
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "known": {},
    "threads": {"num_workers": 2, "shuffle_buffer_size": 8},
    "unknown": {"filters": KEPT},
    "unknown, threads": {"filters": KEPT, "num_workers": 2},
    "steps": {"filters": KEPT, "steps_per_epoch": 10},
}


@pytest.mark.parametrize("form", ["plain", "module"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_epochs(folder: str, tmp_path: Path, form: str, options: dict[str, Any]) -> None:
    assert fit(tmp_path, given_of(folder, form, **options)).met == wanted(folder, **options)


def test_a_plain_loader_of_unknown_length_is_warned_of(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = {"every_n_train_steps": 4}
    for form, options in [("plain", {}), ("module", {"filters": KEPT}), ("plain", {"filters": KEPT})]:
        assert "fetches one ahead" not in caplog.text
        fit(tmp_path / form, given_of(folder, form, **options), save=every, max_epochs=1)
    assert caplog.text.count("fetches one ahead") == 1


SAVES: dict[str, dict[str, Any]] = {
    "steps": {"every_n_train_steps": 1},
    "epochs": {"every_n_epochs": 1, "save_on_train_epoch_end": True},
    "validations": {"every_n_epochs": 1, "save_on_train_epoch_end": False},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "epochs": {},
    "limit": {"limit_train_batches": 4},
    "max_steps": {"max_steps": 20, "max_epochs": -1},
    "val": {"val_check_interval": 3},
}


# With max_steps, Lightning takes one more batch of an epoch that was saved at its end, from any loader.
CASES = [(save, settings) for save in SAVES for settings in SETTINGS if (save, settings) != ("epochs", "max_steps")]


@pytest.mark.slow
@pytest.mark.parametrize(("saving", "setting"), CASES)
@pytest.mark.parametrize("options", [OPTIONS["threads"], OPTIONS["unknown"]], ids=["known", "unknown"])
def test_every_checkpoint_continues_exactly(
    folder: str, tmp_path: Path, saving: str, setting: str, options: dict[str, Any]
) -> None:
    """Of a plain loader where its length is known; of the module in any case."""
    save, settings = SAVES[saving], SETTINGS[setting]

    def given(form: str) -> Any:
        loader, val = make(folder, shuffle=True, **options), make(folder)
        return [loader, val] if form == "plain" else StructuredDataModule(train=loader, val=val)

    def run(form: str, out: Path, **more: Any) -> Recorder:
        return fit(out, given(form), num_sanity_val_steps=1, **settings, **more)

    whole = run("module", tmp_path, save=save)
    most = wanted(folder, settings.get("limit_train_batches"), **options)
    assert whole.met == most[: settings.get("max_steps", len(most))]
    paths = sorted(tmp_path.glob("*.ckpt"), key=lambda path: torch.load(path, weights_only=False)["global_step"])
    assert paths
    for path in paths:
        step = torch.load(path, weights_only=False)["global_step"]
        for form in ("plain", "module") if "filters" not in options else ("module",):
            rest = run(form, tmp_path / "again", path=path)
            assert rest.met == whole.met[step:], f"{form} from {path.name}"


@pytest.mark.parametrize("form", ["plain", "hook", "module"])
@pytest.mark.parametrize(("overfit", "steps"), [(4, 4), (1.0, 13), (0.5, 6)])
def test_overfit_batches_are_the_same_in_each_epoch(
    folder: str, tmp_path: Path, form: str, overfit: float, steps: int
) -> None:
    """Those of epoch 0, whether the loader is given or made by a hook."""

    def given(**options: Any) -> Any:
        return make(folder, num_workers=2, **options)

    class Own(Recorder):
        def train_dataloader(self) -> Any:
            return given(shuffle=True)

        def val_dataloader(self) -> Any:
            return given()

    model = Own() if form == "hook" else Recorder()
    trainer = trainer_of(tmp_path, overfit_batches=overfit, num_sanity_val_steps=0)
    if form == "plain":
        trainer.fit(model, given(shuffle=True), given())
    else:
        data = StructuredDataModule(train=given(shuffle=True), val=given())
        trainer.fit(model, datamodule=data if form == "module" else None)
    first = [batch["id"].tolist() for batch in given(shuffle=True)][:steps]
    assert [ids for _, ids in model.met] == first * EPOCHS
    validated = [row for batch in list(given())[:steps] for row in batch["id"].tolist()]
    assert model.validated == validated * EPOCHS


def test_the_trainers_loop_is_measured(folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = make(folder)
    with caplog.at_level("INFO", "torch_dataloader_utils"):
        model = fit(tmp_path, loader, max_epochs=2)
        loader.dataset.close()  # the Trainer's loop stops at the last batch, without asking for another
    values, verdict = loader.metrics(), loader.dataset.verdict()
    assert values["rows"] == sum(len(ids) for _, ids in model.met)
    assert 0 < values["data_wait_s"] < values["epoch_s"]
    assert (verdict.progress.epoch, 2 * verdict.progress.rows) == (1, values["rows"])
    assert [text.split(":")[0] for text in caplog.messages if "waiting for data" in text] == [
        "rank 0 of 1, epoch 0",
        "rank 0 of 1, epoch 1",
    ]


def test_validation_and_prediction_meet_each_row_once(folder: str, tmp_path: Path) -> None:
    options = {"path": folder, "batch_size": 3, "num_ranks": 1, "rank": 0}
    data = StructuredDataModule(train=options, val=options, predict=make(folder))
    model = fit(tmp_path, data, max_epochs=2)
    assert sorted(model.validated[-38:]) == list(range(38))
    assert len(model.validated) == 2 * 38 + 6  # and two batches before it all
    for given in ({"datamodule": data}, {"dataloaders": make(folder, shuffle=True)}):
        found = trainer_of(tmp_path).predict(model, **given)
        assert sorted(sum(found, [])) == list(range(38))


def test_a_module_without_a_part_says_so(folder: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has no train=: pass it a loader or a dict of options"):
        fit(tmp_path, StructuredDataModule(val=make(folder)))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


JOBS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {"even": "pad", "num_workers": 2, "shuffle_buffer_size": 200}),
    ("module", {"even": "sync", "odd": True, "split_rows": 50}),  # the state is of rank 0: the other reads again
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "settings"), JOBS, ids=[form for form, _ in JOBS])
def test_two_processes_killed_and_started_again(
    rows: Path, tmp_path: Path, form: str, settings: dict[str, Any]
) -> None:
    def job(out: Path, run: int) -> Any:
        command = [sys.executable, Path(__file__).with_name("lightning_job.py"), rows, out, run, form]
        return start([*command, json.dumps(settings)], out, f"run-{run}.log")

    killed = job(tmp_path, 0)
    wait_for(lambda: len(lines(tmp_path, 0)) > 2 * 21, [killed], tmp_path)
    kill(killed)
    finish([job(tmp_path, 1)], tmp_path)
    before, after = lines(tmp_path, 0), lines(tmp_path, 1)
    assert 0 < after[0]["step"] <= before[-1]["step"] + 1, "it did not go on from a checkpoint"
    if form == "plain":
        assert counted(tmp_path, 2) == {epoch: Counter(range(ROWS)) for epoch in range(2)}
    else:
        assert counted(tmp_path, 2) == {epoch: in_step(rows, epoch) for epoch in range(2)}


def in_step(rows: Path, epoch: int) -> Counter[int]:
    """The ids that two ranks read until one has no more: those of even="sync"."""
    ranks = []
    for rank in range(2):
        loader, dataset = StructuredDataset.create_dataloader(
            rows, filters=[("odd", "=", 1)], split_rows=50, batch_size=16, shuffle=True, num_ranks=2, rank=rank
        )
        dataset.set_epoch(epoch)
        ranks.append(loader)
    return Counter(row for step in zip(*ranks, strict=False) for batch in step for row in batch["id"].tolist())


@pytest.mark.slow
def test_the_example(launch: Callable[..., Rows], check: Callable[[Rows, int], None]) -> None:
    check(launch(sys.executable, LEAVES_GLOO, EXAMPLES / "lightning_train.py"), 2)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = program("lightning.md", tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(page.read_text(), page, "exec"), names)
    assert names["trainer"].current_epoch == 2
    assert Path("checkpoints/last.ckpt").exists()


def test_metrics_reach_lightnings_loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = program("cookbook/logging.md", tmp_path)
    exec(compile(page.read_text(), page, "exec"), {"__name__": "page"})
    with Path("logs/lightning_logs/version_0/metrics.csv").open() as file:
        logged = [row for row in csv.DictReader(file) if row["data/rows"]]
    assert [int(row["step"]) for row in logged] == list(range(50, 313, 50))
    assert all(float(row["data/rows"]) >= 50 * 256 and float(row["data/data_wait_s"]) > 0 for row in logged)
