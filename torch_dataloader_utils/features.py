"""The features of a loader, in the order in which they change it: whoever adds one, adds it here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch_dataloader_utils.class_weights.feature import class_weights
from torch_dataloader_utils.feature import Feature, Features
from torch_dataloader_utils.following.feature import following
from torch_dataloader_utils.length_buckets.feature import length_buckets
from torch_dataloader_utils.mixing.feature import mixing
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.packing.feature import packing
from torch_dataloader_utils.sequences.feature import time_windows
from torch_dataloader_utils.subsets.feature import subsets

FEATURES: tuple[Callable[[Options], Feature | None], ...] = (
    subsets,
    class_weights,
    packing,
    length_buckets,
    time_windows,
    mixing,
    following,
)


def with_features(options: Options, features: Sequence[Callable[[Options], Feature | None]] = FEATURES) -> Options:
    """The options with those of these features that they ask for."""
    return replace(options, features=Features(makers=tuple(features)).of(options))
