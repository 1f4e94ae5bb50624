"""Class weights as a feature: how many copies rows get by the class that they belong to."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.class_weights.draws import ClassDraw, Copies, Weights
from torch_dataloader_utils.class_weights.labels import report_absent_labels
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.hashing import name_hash
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.options import Options, SubsetOptions
from torch_dataloader_utils.options.subset import MOST_COPIES
from torch_dataloader_utils.printing import listed, shown
from torch_dataloader_utils.reading.files import FileOpener
from torch_dataloader_utils.reading.labels import plain_labels
from torch_dataloader_utils.schemas.columns import available_columns, find_path
from torch_dataloader_utils.schemas.merge import is_text
from torch_dataloader_utils.sources.manifest import FileManifest

_LOG = logging.getLogger("torch_dataloader_utils")
_LABELS = {int: "a whole number, such as 1", str: "a string, such as '1'", bool: "True or False"}


@dataclass(frozen=True)
class ClassCopies:
    """How many copies of its rows each class gets; picklable.

    Attributes:
        column: the column of labels.
        labels: those with a weight, of the column's type; one may be null.
        weights: of these labels; all others have 1. None: they balance the labels, once these are counted.
        seed: of the draws.
    """

    column: str
    labels: pa.Array
    weights: tuple[float, ...] | None
    seed: int

    @property
    def unlearned(self) -> bool:
        """See `RowCopies`."""
        return self.weights is None

    def learned(self, counts: Mapping[Any, int], name: str) -> ClassCopies:
        """The weights n / (k * count) of k labels of n rows, at most 1,000: so an epoch has about n rows, too."""
        weights = balanced(counts)
        rare = [label for label, weight in weights.items() if weight > MOST_COPIES]
        if rare:
            _LOG.warning(
                "%s: class_weights: balance would take more than %s copies of each row with the label(s) %s in column "
                "%r, so they get as many",
                name, f"{MOST_COPIES:,}", listed(rare, show=shown), self.column,
            )  # fmt: skip
        labels = pa.array(list(weights), self.labels.type)
        return replace(self, labels=labels, weights=tuple(min(weight, MOST_COPIES) for weight in weights.values()))

    def weights_of(self, labels: pa.ChunkedArray) -> Weights:
        """The weight of each row, float64 [rows]."""
        assert self.weights is not None
        places = pc.fill_null(pc.index_in(plain_labels(labels), value_set=self.labels), len(self.labels))
        return np.array([*self.weights, 1.0])[np.asarray(places, np.int64)]

    def counted(self, labels: pa.ChunkedArray, file: int, segment: int, epoch: int) -> Copies:
        """The number of copies of each row of a segment, int64 [rows]."""
        return ClassDraw(self.seed, epoch).copies(self.weights_of(labels), file, segment)

    def report(self, files: Sequence[DataFile], opener: FileOpener, name: str) -> None:
        """Warn of labels with a weight that no row has."""
        labels = [label for label in self.labels.to_pylist() if label is not None]
        report_absent_labels(labels, self.column, files, opener, name)


def balanced(counts: Mapping[Any, int]) -> dict[Any, float]:
    """The weight of each label that gives all labels as many rows, and an epoch as many as without weights."""
    rows = sum(counts.values())
    return {label: rows / (len(counts) * count) for label, count in sorted(counts.items()) if count}


class ClassWeights(Feature):
    """Copies of rows by their class, drawn anew in each epoch."""

    def manifest(self, manifest: FileManifest, options: Options) -> FileManifest:
        """The manifest whose files have the hashes of their names, under which copies of their rows are drawn."""
        files = (replace(file, name_hash=name_hash(manifest.name_of(file))) for file in manifest.files)
        return replace(manifest, files=tuple(files))

    def copies(self, manifest: FileManifest, options: Options) -> ClassCopies:
        """How many copies rows get by their class.

        Raises:
            ColumnNotFoundError: there is no such column.
            OptionError: the column's type has no labels, or not these.
        """
        return _class_copies(manifest, options.subset)


def class_weights(options: Options) -> ClassWeights | None:
    """The feature of `class_weights`; None without it."""
    return None if options.subset.class_weights is None else ClassWeights()


def _class_copies(manifest: FileManifest, options: SubsetOptions) -> ClassCopies:
    assert options.class_weights is not None
    ((column, weights),) = options.class_weights.items()
    if column not in manifest.schema.names:
        if find_path(manifest.schema, column) is not None:
            raise OptionError(
                f"class_weights: {column!r} is a field of a struct: expected a column of the file or table."
            )
        raise ColumnNotFoundError(f"class_weights: no column {column!r}: {available_columns(manifest.schema, column)}")
    kind = manifest.schema.field(column).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    types = pa.types
    python: type = int
    if types.is_boolean(plain):
        python = bool
    elif is_text(plain):
        python = str
    elif not (types.is_integer(plain) or types.is_floating(plain)):
        raise OptionError(
            f"class_weights: column {column!r} has type {kind}: expected labels that are strings, whole numbers "
            "or bools."
        )
    if isinstance(weights, str):
        return ClassCopies(column, pa.array([], plain), None, options.seed)
    for label in weights:
        if label is not None and type(label) is not python:
            raise OptionError(
                f"class_weights: label {label!r} of column {column!r}, of type {kind}: expected {_LABELS[python]}."
            )
    try:
        labels = pa.array(list(weights), pa.int64() if types.is_floating(plain) else plain).cast(plain)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise OptionError(f"class_weights: a label does not fit column {column!r} of type {kind}: {error}") from error
    return ClassCopies(column, labels, tuple(map(float, weights.values())), options.seed)
