"""Lightning's CombinedLoader of loaders of different lengths: resumed at every step, in each of its modes."""

from __future__ import annotations

import itertools
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.resume.helpers import KEPT, make, write_files

# Tests import Lightning themselves: else each test process would need seconds to collect them.
pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]

MODES = ["min_size", "max_size", "max_size_cycle", "sequential"]
EPOCHS = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of 12 and 5 rows."""
    layouts = [((3, 2), (4, 3)), ((2, 3),)]
    return [write_files(tmp_path_factory.mktemp("data"), layout) for layout in layouts]


def combined(folders: list[str], mode: str, **options: Any) -> Any:
    from lightning.pytorch.utilities.combined_loader import CombinedLoader

    given = {"batch_size": 1, "shuffle": True, "split_rows": 2} | options
    return CombinedLoader([make(folder, **given) for folder in folders], mode)


def told(value: Any) -> Any:
    """What was delivered, without indices: batches as ids."""
    if isinstance(value, dict):
        return value["id"].tolist()
    return [told(each) for each in value] if isinstance(value, (list, tuple)) else value


def epoch_of(loader: Any, epoch: int, states: list[Any] | None = None, most: int = 999) -> list[Any]:
    """A round of at most so many batches, as a Trainer begins and ends it; adds the states after each batch."""
    for each in loader.flattened:
        each.sampler.set_epoch(epoch)
    found, batches = [], iter(loader)
    for out, _, dataset in itertools.islice(batches_of(batches), most):
        found.append((told(out), dataset))
        if states is not None:
            states.append(json.loads(json.dumps(loader._state_dicts())))
    return found


def batches_of(iterator: Any) -> Any:
    while True:
        try:
            yield next(iterator)  # a `for` would call iter() a second time
        except StopIteration:
            return


@pytest.mark.parametrize("options", [{}, {"filters": KEPT}, {"num_workers": 2}], ids=["plain", "unknown", "workers"])
@pytest.mark.parametrize("order", [1, -1], ids=["longer first", "shorter first"])
@pytest.mark.parametrize("mode", MODES)
def test_every_step_of_a_combined_loader(folders: list[str], mode: str, order: int, options: dict[str, Any]) -> None:
    """Every state that was taken before the last batch of its round."""
    folders = folders[::order]
    loader, whole, states = combined(folders, mode, **options), [], []
    for epoch in range(EPOCHS):
        states.append([])
        whole.append(epoch_of(loader, epoch, states[-1]))
    assert all(whole)
    for epoch, taken in enumerate(states):
        for step, state in enumerate(taken[:-1], 1):
            again = combined(folders, mode, **options)
            again._load_state_dicts(state)
            # CombinedLoader itself forgets who has ended, and would go on; a Trainer counts the batches of a round.
            most = [len(whole[epoch]) - step, *map(len, whole[epoch + 1 :])]
            found = [epoch_of(again, each, most=most[each - epoch]) for each in range(epoch, EPOCHS)]
            assert found == [whole[epoch][step:], *whole[epoch + 1 :]], (epoch, step)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle"])  # a Trainer has no other
def test_a_trainer_resumes_a_combined_loader_at_every_step(folders: list[str], tmp_path: Path, mode: str) -> None:
    from lightning import pytorch as lightning

    class Recorder(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))
            self.met: list[Any] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.met.append((self.current_epoch, told(batch)))
            return self.weight * 1.0

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    def fit(path: Path | None = None, **more: Any) -> Recorder:
        model = Recorder()
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, **more,
        )  # fmt: skip
        trainer.fit(model, combined(folders, mode), ckpt_path=path)
        return model

    saving = lightning.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, every_n_train_steps=1)
    whole = fit(callbacks=[saving])
    paths = {torch.load(path, weights_only=False)["global_step"]: path for path in tmp_path.glob("*.ckpt")}
    steps = len(whole.met) // 2
    assert len(paths) == 2 * steps
    for step, path in paths.items():
        if step % steps:  # at the end of a round, Lightning itself goes on with the next one
            rest = fit(path, enable_checkpointing=False)
            assert rest.met == whole.met[step:], step
