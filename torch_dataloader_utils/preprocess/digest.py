"""A hash of all that decides what a fitted `Preprocess` makes of rows: of two with one digest, outputs are equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch_dataloader_utils.preprocess.fitted import FittedOutput, Vocabulary
from torch_dataloader_utils.preprocess.hashed import one_hash
from torch_dataloader_utils.preprocess.transforms import Categorize, ColumnTransform, Cross


def digest_of(outputs: Sequence[FittedOutput], dtype: str) -> str:
    """The digest, 32 hexadecimal digits.

    Counts, and options that only decide what is learned, are no part of it; nor are the widths of columns.
    """
    made = hashlib.blake2b(digest_size=16)
    content: list[Any] = ["preprocess", 1, dtype]
    for each in outputs:
        links = [[_deciding(link), _plain(fitted)] for link, fitted in zip(each.output.chain, each.fitted, strict=True)]
        content.append([each.output.name, each.output.columns, [kind.text for kind in each.kinds], links])
    made.update(json.dumps(content, sort_keys=True).encode())
    for each in outputs:
        for fitted in each.fitted:
            if "vocabulary" in fitted:
                made.update(_hashes(fitted["vocabulary"]))
    return made.hexdigest()


def _deciding(link: ColumnTransform) -> Any:
    """The options of a link that decide what is made of values, apart from what it has learned."""
    if isinstance(link, Cross):
        return ["cross", _deciding(link.of)]
    if isinstance(link, Categorize):
        return ["categorize", link.unknown_ids, link.unknown]
    return [type(link).__name__, {name: _number(value) for name, value in link.given().items()}]


def _plain(fitted: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _number(value) for name, value in fitted.items() if name not in ("vocabulary", "counts")}


def _number(value: Any) -> Any:
    """Floats by all their bits; other values by what Python writes."""
    if isinstance(value, (list, tuple)):
        return [_number(item) for item in value]
    if isinstance(value, (bool, str, type(None))):
        return value
    return float(value).hex() if isinstance(value, (int, float)) and value == float(value) else repr(value)


def _hashes(vocabulary: Vocabulary) -> bytes:
    """The hashes of values, in the order of their ids."""
    if not vocabulary.in_arrow:
        return b"".join(one_hash(value).to_bytes(8, "little") for value in vocabulary.values)
    from torch_dataloader_utils.schemas.value_hashes import array_hashes

    return bytes(array_hashes(vocabulary.array).astype("<u8").tobytes())
