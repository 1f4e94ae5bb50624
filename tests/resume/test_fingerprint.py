"""The digest of a state's splits: states of earlier releases must keep theirs."""

from __future__ import annotations

from torch_dataloader_utils.checkpoint.checkpoint import _split_texts
from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout, Split
from torch_dataloader_utils.planning.splits import Splits


def test_splits_are_described_by_the_str_of_their_values() -> None:
    infos = [DataFileInfo("a", 1, 9), DataFileInfo("b", 1, part=1)]
    splits = [
        Split(infos[0], (0, 5), (0, 1)),
        Split(infos[0], (5, 9), None),
        Split(infos[1], None, (0, 2)),
        Split(infos[1], None, None),
    ]
    columns = Splits.of(splits, [DataFile(info, FileLayout(())) for info in infos])
    assert list(_split_texts(columns)) == [f"{split.file.part} {split.row_range} {split.segments}" for split in splits]
