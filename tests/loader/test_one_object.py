"""One object is enough: what a dataset offers, its loader offers."""

from __future__ import annotations

import inspect

from torch.utils.data import IterableDataset

from torch_dataloader_utils import StructuredLoader
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.loader.tables import SnapshotDataset

OF_FRAMEWORKS = {"accelerate", "propose_epoch", "replaced"}  # called by the loader itself, and by integrations


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_loader_has_what_its_dataset_has() -> None:
    ours = (public(LoaderDataset) | public(SnapshotDataset)) - public(IterableDataset) - OF_FRAMEWORKS
    assert {"advance", "describe", "head", "rows_of", "vocabulary"} < ours
    assert ours - public(StructuredLoader) == set()
    for name in ours:
        of_dataset, of_loader = getattr(SnapshotDataset, name), getattr(StructuredLoader, name)
        if callable(of_dataset):
            assert list(inspect.signature(of_loader).parameters) == list(inspect.signature(of_dataset).parameters)
