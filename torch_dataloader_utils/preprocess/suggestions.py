"""What catches the eye in the statistics of a column, and a spec to begin with."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torch_dataloader_utils.preprocess.transforms import (
    Categorize,
    Clip,
    ColumnTransform,
    DateParts,
    Drop,
    Hash,
    Impute,
    Keep,
    Log1p,
    Standardize,
)

if TYPE_CHECKING:
    from torch_dataloader_utils.preprocess.column_statistics import ColumnStatistics

_MOSTLY = 0.5  # a greater share of missing values is worth a remark
_LIKE_ID = 0.95  # so many values of 1 that differ are an id; the number of values is known to 1.6 %
_FEWEST = 100  # values of which that can be said
_SKEWED = 4  # the upper half of the values is so many times wider than the lower half
_FEW = 32  # whole numbers that are rather categories
_RARE = 10  # values that occur less often teach nothing
_MANY = 1000  # categories of which rare ones are left out
_LARGE = 100_000  # more categories than these are hashed
_LONGEST = 22  # bits of a hash
_TARGETS = frozenset({"label", "target", "y"})
_TEXTS, _TIMES = ("text", "bytes"), ("date", "timestamp", "zoned")


def remarks_of(column: ColumnStatistics, inside: int = 0) -> Iterator[str]:
    """What catches the eye, each in some words.

    Args:
        column: without remarks.
        inside: how many of the values in its lists are null.
    """
    kind = _values(column)
    if kind not in (*_TEXTS, *_TIMES, "number", "time"):
        yield "its values are not counted"
    elif column.missing == column.rows:
        yield "all missing"
    elif column.distinct == 1 and column.lengths is None and not column.missing:
        yield "constant"
    if column.missing_share is not None and _MOSTLY < column.missing_share < 1:
        yield f"{column.missing_share:.0%} missing"
    if inside + (column.nan or 0) and column.lengths is not None:
        yield f"{inside + (column.nan or 0):,} missing values in lists"
    if column.infinite:
        yield f"{column.infinite:,} infinite: clip them"
    if _is_id(column):
        yield "looks like an id: nearly every row has its own value"
    if _stored_as_doubles(column):
        yield "whole numbers stored as floats"
    if _is_skewed(column):
        yield "skewed: Log1p"


def _values(column: ColumnStatistics) -> str:
    return column.kind.rpartition(" ")[2]


def _is_float(column: ColumnStatistics) -> bool:
    return any(word in column.type for word in ("float", "double"))


def _there(column: ColumnStatistics) -> int:
    """How many values are there, infinite ones left out."""
    return column.rows - (column.missing or 0) - (column.infinite or 0)


def _is_id(column: ColumnStatistics) -> bool:
    whole = _values(column) in _TEXTS or (_values(column) == "number" and column.whole)
    there = _there(column)
    return whole and column.lengths is None and there >= _FEWEST and (column.distinct or 0) >= _LIKE_ID * there


def _stored_as_doubles(column: ColumnStatistics) -> bool:
    return _is_float(column) and column.whole and column.mean is not None


def _is_skewed(column: ColumnStatistics) -> bool:
    if _values(column) != "number" or column.quantiles is None or column.lengths is not None or _is_id(column):
        return False
    low, middle, high = (float(column.quantiles[share]) for share in (0.01, 0.5, 0.99))
    return (column.distinct or 0) > _FEW and high / 2 - middle / 2 > _SKEWED * (middle / 2 - low / 2)


def spec_of(columns: Sequence[ColumnStatistics]) -> dict[str, list[ColumnTransform]]:
    """A chain of transforms for each column: one that can be fitted on the rows counted."""
    made = {column.name: _chain(column) for column in columns}
    if made and all(isinstance(chain[0], Drop) for chain in made.values()):
        made[columns[0].name] = [Keep()]  # a spec leaves at least one output
    return made


def _chain(column: ColumnStatistics) -> list[ColumnTransform]:
    kind = _values(column)
    if kind not in (*_TEXTS, *_TIMES, "number") or column.missing == column.rows:
        return [Drop()]
    if column.name.lower() in _TARGETS:
        return [Keep()]
    if (column.distinct or 0) <= 1 and column.lengths is None and not column.missing:
        return [Drop()]
    if kind in _TIMES:
        return [Keep()] if column.lengths is not None else [DateParts(*_parts(kind))]
    if kind in _TEXTS:
        return [Drop()] if _is_id(column) else [_ids(column)]
    return _of_numbers(column)


def _parts(kind: str) -> list[str]:
    return ["month", "weekday"] if kind == "date" else ["month", "weekday", "hour"]


def _of_numbers(column: ColumnStatistics) -> list[ColumnTransform]:
    if column.kind.startswith("fixed"):
        return [Keep()]  # a vector
    if column.lengths is None and (column.distinct or 0) <= 2 and column.whole and not column.missing:
        return [Keep()]
    categories = column.whole and not column.infinite and _fit_int64(column)
    if _is_id(column):
        return [Drop()]
    if categories and ((column.distinct or 0) <= _FEW or column.lengths is not None or _named_id(column)):
        return [_ids(column)]
    chain: list[ColumnTransform] = []
    if column.infinite:
        chain.append(Clip(quantiles=(0.01, 0.99)))
    if column.missing or column.lengths is not None:
        chain.append(Impute("median"))
    if _is_skewed(column):
        signed = column.min is None or column.min < 0
        chain.append(Log1p(signed=True) if signed else Log1p())
    return [*chain, Standardize()]


def _fit_int64(column: ColumnStatistics) -> bool:
    return column.min is not None and column.min >= -(2**63) and column.max < 2**63


def _named_id(column: ColumnStatistics) -> bool:
    """Whether a column of numbers is called as keys are: "user_id", "userId", "id"."""
    name = column.name
    return name.lower() == "id" or name.endswith(("_id", "Id", "ID"))


def _ids(column: ColumnStatistics) -> ColumnTransform:
    distinct = column.distinct or 0
    if distinct > _LARGE:
        return Hash(1 << min(_LONGEST, math.ceil(math.log2(2 * distinct))))
    if distinct > _MANY and _there(column) > _RARE * distinct:
        return Categorize(min_count=_RARE)
    return Categorize()


def spec_text(spec: Mapping[str, Sequence[ColumnTransform]], columns: Sequence[ColumnStatistics]) -> str:
    """A spec as a program, with the remarks on columns beside them."""
    names = sorted({type(link).__name__ for chain in spec.values() for link in chain})
    remarks = {column.name: "; ".join(column.remarks) for column in columns}
    entries = [(f"    {name!r}: {_python(chain)},", remarks[name]) for name, chain in spec.items()]
    width = min(60, max(len(entry) for entry, _ in entries))
    lines = [f"{entry:<{width}}  # {remark}" if remark else entry for entry, remark in entries]
    imports = f"from torch_dataloader_utils.preprocess import {', '.join(sorted([*names, 'Preprocess']))}"
    return "\n".join([imports, "", "prep = Preprocess({", *lines, "})"])


def _python(chain: Sequence[ColumnTransform]) -> str:
    texts = [_call(link) for link in chain]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _call(link: ColumnTransform) -> str:
    return f"DateParts({', '.join(map(repr, link.parts))})" if isinstance(link, DateParts) else repr(link)


def spec_yaml(spec: Mapping[str, Sequence[ColumnTransform]]) -> str:
    """A spec as YAML: JSON, which YAML holds, with a line for each column."""
    lines = []
    for name, chain in spec.items():
        links = [link.to_dict() for link in chain]
        lines.append(f"{_json(name)}: {_json(links[0] if len(links) == 1 else links)}")
    return "\n".join(lines) + "\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # YAML knows no pairs of surrogates
