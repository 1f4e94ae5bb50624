"""What batches hold of packed documents, or of each side of packed pairs: the keys, and where labels come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_dataloader_utils.convert.columns import Array, Column
from torch_dataloader_utils.options.packing import ENDS, LABELS, LONGEST, OF_DOCUMENTS, Pack


def made_labels(tokens: Array) -> Array:
    """Labels of these tokens: int64, as losses need them, in fresh memory."""
    return tokens.astype(np.int64)


@dataclass(frozen=True)
class PackedSide:
    """What batches hold of documents, or of one side of pairs.

    Attributes:
        prefix: how its keys begin.
        columns: the keys of the columns that are packed.
        pack: says what is added.
    """

    prefix: str
    columns: tuple[str, ...]
    pack: Pack

    @property
    def labels(self) -> str | None:
        """The key of its labels; None if it has none."""
        key = self.prefix + LABELS
        return key if self.pack.labels is not None or key in self.columns else None

    @property
    def made_of(self) -> str | None:
        """The column of whose tokens its labels are made; None if a column has them, or nothing."""
        return None if self.pack.labels is None else self.prefix + self.pack.labels

    @property
    def filled(self) -> tuple[str, ...]:
        """The keys of tokens and their labels."""
        return self.columns if self.made_of is None else (*self.columns, self.prefix + LABELS)

    @property
    def added(self) -> tuple[str, ...]:
        """The keys that packing adds."""
        return tuple(self.prefix + key for keys in self.pack.added.values() for key in keys)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of batches, in order."""
        return (*self.filled, *self.added)

    def named(self, added: Mapping[str, Column]) -> dict[str, Column]:
        """What packing adds, under the keys of batches."""
        return {self.prefix + key: added[name] for name, keys in self.pack.added.items() for key in keys}

    def report(self, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The content of batches by key; `documents` is that of the columns before they are packed."""
        shape = f"[B, {self.pack.length}]"
        packed = {key: {**documents[key], "kind": "dense", "shape": shape} for key in self.columns}
        if self.made_of is not None:
            packed[self.prefix + LABELS] = {"kind": "dense", "dtype": "int64", "shape": shape, "arrow": "int64"}
        for name, keys in self.pack.added.items():
            form = {ENDS: "[documents + 1]", LONGEST: "a number"}.get(name, shape)
            dtype = "int32" if name != LONGEST else "int"
            content = {"kind": "dense", "dtype": dtype, "shape": form, "arrow": "int32"}
            packed.update({self.prefix + key: dict(content) for key in keys})
        return packed


def sides_of(pack: Pack, columns: Iterable[str]) -> tuple[PackedSide, ...]:
    """The sides of what is packed of these columns, each with those whose keys begin as its own."""
    keys = tuple(columns)
    return tuple(
        PackedSide(prefix, tuple(key for key in keys if key.startswith(prefix)), pack) for prefix in pack.prefixes
    )


def keys_of(sides: Sequence[PackedSide], valid_key: str | None, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The keys of a batch of these sides, in order.

    Models of transformers take no mask, so their labels have it instead: see `LabelsForMask`.

    Args:
        sides: what is packed.
        valid_key: the key of the mask of real rows, or None if no plan repeats any.
        names: the columns that name documents.
    """
    mask = [] if valid_key is None or sides[0].pack.keys is not None else [valid_key]
    return (*(key for side in sides for key in side.keys), *(OF_DOCUMENTS[name] for name in names), *mask)


def report_of_names(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What batches hold of the columns that name documents, by key."""
    content = {"kind": "dense", "dtype": "int64", "shape": "[documents]", "arrow": "int64"}
    return {OF_DOCUMENTS[name]: dict(content) for name in names}
