"""A hash of all that decides what a fitted `Preprocess` makes of rows: of two with one digest, outputs are equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from torch_dataloader_utils.preprocess.encoding import encoded
from torch_dataloader_utils.preprocess.fitted import FittedOutput, Vocabulary
from torch_dataloader_utils.preprocess.hashed import one_hash
from torch_dataloader_utils.preprocess.target import TargetEncode
from torch_dataloader_utils.preprocess.transforms import (
    ERROR,
    HELD,
    Bucketize,
    Categorize,
    Clip,
    ColumnTransform,
    Cross,
    DateParts,
    Fitted,
    Impute,
    Keep,
    Robust,
    Standardize,
)

# Options that only say what is learned.
_LEARNING: Mapping[type[ColumnTransform], frozenset[str]] = {
    Standardize: frozenset({"center", "scale", "ddof"}),
    Robust: frozenset({"low", "high"}),
    Clip: frozenset({"quantiles"}),
    Impute: frozenset({"strategy"}),
    Bucketize: frozenset({"quantiles"}),
    Categorize: frozenset({"values", "min_count", "max_size", "order", "nulls"}),
    Keep: frozenset({"classes"}),
    TargetEncode: frozenset({"target", "smooth", "classes"}),
}
_FOLDS = frozenset({"folds", "by", "seed"})  # options that decide nothing outside of training
_EXACT = 2**53  # whole numbers up to it are equal to their floats


def digest_of(outputs: Sequence[FittedOutput], dtype: str) -> str:
    """The digest, 32 hexadecimal digits.

    Counts, errors of quantiles, and options that only decide what is learned, are no part of it; nor are the widths of
    columns.
    """
    made = hashlib.blake2b(digest_size=16)
    content = ["preprocess", 1, dtype, *map(_output, outputs)]
    made.update(json.dumps(content, sort_keys=True).encode())
    for each in outputs:
        for fitted in each.fitted:
            if "vocabulary" in fitted and not isinstance(each.last, Keep):  # which only counts
                made.update(_hashes(fitted["vocabulary"]))
            if "encoding" in fitted:  # without folds, it is the same for any files
                used = fitted["encoding"] if each.training else fitted["encoding"][:, :1]
                made.update(used.astype("<f8").tobytes())
    return made.hexdigest()


def _output(each: FittedOutput) -> list[Any]:
    kinds = [[type_.kind.text, type_.size] for type_ in each.types]
    # Parts of instants are those on the clocks of the column's zone, unless another is given.
    zone = each.types[0].zone if isinstance(each.last, DateParts) else None
    links = [_link(link, fitted, each.training) for link, fitted in zip(each.output.chain, each.fitted, strict=True)]
    made = [each.output.name, list(each.output.columns), kinds, zone, each.output.numeric, links]
    return [*made, [type_.kind.text for type_ in each.fold_types]] if each.training else made


def _link(link: ColumnTransform, fitted: Fitted, training: bool) -> list[Any]:
    """The options that decide what is made of values, with what was learned: given bounds are as learned ones."""
    learned = {name: _plain(value) for name, value in fitted.items() if name not in (*HELD, ERROR)}
    if "vocabulary" in fitted and not isinstance(link, Keep):  # which only counts
        vocabulary: Vocabulary = fitted["vocabulary"]
        learned["vocabulary"] = [len(vocabulary), vocabulary.type == "uint64"]  # -1 has the hash of 2**64 - 1
    return [type(link).__name__, {**_deciding(link, training), **learned}]


def _deciding(link: ColumnTransform, training: bool) -> dict[str, Any]:
    if isinstance(link, Cross):
        return {"of": [type(link.of).__name__, _deciding(link.of, training)]}
    ignored = _LEARNING.get(type(link), frozenset())
    if isinstance(link, TargetEncode) and not training:
        ignored |= _FOLDS
    return {name: _plain(value) for name, value in link.given().items() if name not in ignored}


def _plain(value: Any) -> Any:
    """Equal numbers, and equal instants, alike."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):  # what an `OwnTransform` has learned
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, float) or (type(value) is int and abs(value) <= _EXACT):
        return float(value).hex()
    if isinstance(value, datetime) and value.utcoffset() is not None:
        value = value.astimezone(UTC)
    return encoded(value)


def _hashes(vocabulary: Vocabulary) -> bytes:
    """The hashes of values, in the order of their ids."""
    if not vocabulary.in_arrow:
        return b"".join(one_hash(value).to_bytes(8, "little") for value in vocabulary.values)
    from torch_dataloader_utils.schemas.value_hashes import array_hashes

    return bytes(array_hashes(vocabulary.array).astype("<u8").tobytes())
