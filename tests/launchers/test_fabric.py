"""Lightning Fabric, whose wrapper of a loader counts its passes from 0: epochs and places that were asked for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.resume.helpers import make, write_files
from torch_dataloader_utils.loader.loader import epoch_of_count

fabric_module = pytest.importorskip("lightning.fabric")
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own

Met = list[tuple[int, list[int]]]  # the epoch and the ids of each batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


class Loop:
    """A training loop as users of Fabric write it: epochs, a limit of steps, checkpoints, and going on from one."""

    def __init__(self, loader: Any, **settings: Any) -> None:
        self.fabric = fabric_module.Fabric(accelerator="cpu", devices=1)
        self.model, self.optimizer = self.fabric.setup(*model_and_optimizer())
        self.loader = loader
        self.batches = self.fabric.setup_dataloaders(loader)
        self.most = settings.get("most", 999)
        self.sets_epochs = settings.get("sets_epochs", False)
        self.met: Met = []

    def fit(self, epochs: range, stop: int | None = None) -> None:
        for epoch in epochs:
            if self.sets_epochs:
                self.loader.set_epoch(epoch)
            for step, batch in enumerate(self.batches):
                if step == self.most:
                    break
                self.optimizer.zero_grad()
                self.fabric.backward(self.model(batch["id"][:, None].float()).mean())
                self.optimizer.step()
                self.met.append((epoch, batch["id"].tolist()))
                if len(self.met) == stop:
                    return

    def save(self, path: Path) -> None:
        self.fabric.save(path, {"model": self.model, "optimizer": self.optimizer, "loader": self.loader})

    def load(self, path: Path) -> int:
        """The epoch to go on in."""
        self.fabric.load(path, {"model": self.model, "optimizer": self.optimizer, "loader": self.loader})
        return int(self.loader.state_dict()["epoch"])


def model_and_optimizer() -> tuple[Any, Any]:
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-6)


def wanted(folder: str, epochs: range, most: int = 999) -> Met:
    """What a plain loop meets that sets its epochs."""
    loader = make(folder, shuffle=True)
    found: Met = []
    for epoch in epochs:
        loader.dataset.set_epoch(epoch)
        found += [(epoch, batch["id"].tolist()) for _, batch in zip(range(most), loader, strict=False)]
    return found


@pytest.mark.parametrize("sets_epochs", [False, True])
@pytest.mark.parametrize("most", [4, 999])
def test_the_epochs_of_a_new_run(folder: str, sets_epochs: bool, most: int) -> None:
    loop = Loop(make(folder, shuffle=True), sets_epochs=sets_epochs, most=most)
    loop.fit(range(3))
    assert loop.met == wanted(folder, range(3), most)


@pytest.mark.parametrize("once", [True, False])
def test_an_epoch_that_was_set_outranks_the_count(folder: str, once: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Set once, before the loop, or before each epoch."""
    caplog.set_level(logging.INFO, "torch_dataloader_utils")
    loop = Loop(make(folder, shuffle=True), sets_epochs=not once)
    loop.loader.dataset.set_epoch(3)
    loop.fit(range(3, 6))
    assert loop.met == wanted(folder, range(3, 6))
    assert caplog.text.count("Fabric's pass 0 is epoch 3, which was set or loaded") == 1
    assert caplog.text.count("Fabric's pass") == 1


@pytest.mark.parametrize("sets_epochs", [False, True])
@pytest.mark.parametrize("stop", [3, 12, 13, 30], ids=["epoch 0", "epoch 0's last", "epoch 1", "epoch 2"])
def test_a_loaded_state_outranks_the_count(folder: str, tmp_path: Path, stop: int, sets_epochs: bool) -> None:
    """In a new process, where Fabric counts from 0; and later, where it has counted some passes."""
    loop = Loop(make(folder, shuffle=True), sets_epochs=sets_epochs)
    loop.fit(range(4), stop)
    loop.save(tmp_path / "state.ckpt")
    assert len(wanted(folder, range(1))) == 13
    expected = wanted(folder, range(4))[stop:]

    resumed = Loop(make(folder, shuffle=True), sets_epochs=sets_epochs)
    resumed.fit(range(resumed.load(tmp_path / "state.ckpt"), 4))
    assert resumed.met == expected
    resumed.met.clear()
    resumed.fit(range(resumed.load(tmp_path / "state.ckpt"), 4))  # again, with passes counted by now
    assert resumed.met == expected


def test_epochs_of_a_limited_run_go_on_after_a_resume(folder: str, tmp_path: Path) -> None:
    """A pass that is left half-way counts for Fabric: the next one is of the next epoch."""
    loop = Loop(make(folder, shuffle=True), most=4)
    loop.loader.dataset.set_epoch(2)
    loop.fit(range(2, 4), stop=6)
    loop.save(tmp_path / "state.ckpt")
    resumed = Loop(make(folder, shuffle=True), most=4)
    resumed.fit(range(resumed.load(tmp_path / "state.ckpt"), 6))
    assert resumed.met == wanted(folder, range(3, 4), 6)[2:] + wanted(folder, range(4, 6), 4)


@pytest.mark.parametrize(
    ("count", "asked", "shift", "epoch", "then"),
    [
        (0, None, 0, 0, 0),  # a new run
        (3, None, 0, 3, 0),
        (0, 5, 0, 5, 5),  # set or loaded: it outranks the count
        (1, None, 5, 6, 5),  # the count goes on from there
        (2, 2, 0, 2, 0),  # nothing to outrank
        (1, 6, 5, 6, 5),  # set before each epoch
        (5, 2, 0, 2, -3),  # an older state, later in a process
        (6, None, -3, 3, -3),
        (0, None, -3, 0, 0),  # a new wrapper counts from 0 again
    ],
)
def test_the_rule(count: int, asked: int | None, shift: int, epoch: int, then: int) -> None:
    assert epoch_of_count(count, asked, shift) == (epoch, then)


@given(asked=st.integers(0, 99), first=st.integers(0, 99), later=st.lists(st.integers(0, 99), max_size=9))
def test_the_count_goes_on_from_what_was_asked_for(asked: int, first: int, later: list[int]) -> None:
    epoch, shift = epoch_of_count(first, asked, 0)
    assert epoch == asked
    for count in sorted(first + more for more in later):
        epoch, shift = epoch_of_count(count, None, shift)
        assert epoch - asked == count - first
