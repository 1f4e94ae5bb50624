"""Whether the numbers under one key stand for the same in all datasets of a combination; if not, makes them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.dtypes import with_cast
from torch_dataloader_utils.convert.meaning import NUMBERS, Meaning, agreed
from torch_dataloader_utils.errors import Example, OptionError, Remedy, use
from torch_dataloader_utils.reading.samples import SampleScan
from torch_dataloader_utils.reading.scan import ScanSpec


@dataclass(frozen=True, slots=True)
class Side:
    """A dataset of a combination.

    Attributes:
        name: for messages.
        scan: what it reads.
        declares: whether `schema=` may declare the types of its columns: it is no table, and no text, whose values
            are parsed as what they are declared to be.
    """

    name: str
    scan: ScanSpec | SampleScan
    declares: bool = False

    def sources(self, key: str) -> tuple[str, ...]:
        """The keys of the columns that a key of the batches holds."""
        return self.scan.converter.sources.get(key, ()) if isinstance(self.scan, ScanSpec) else (key,)

    def meaning(self, source: str) -> tuple[Meaning, bool] | None:
        """What the numbers of a column stand for, and whether `dtypes=` names it; None if it has no numbers."""
        if isinstance(self.scan, SampleScan):
            return None if self.dtype(source) in ("str", "bytes", "object") else (NUMBERS, False)
        element = self.scan.converter.elements.get(source)
        return None if element is None else (element.meaning, element.named)

    def dtype(self, source: str) -> str:
        """The dtype of a column of numbers."""
        if isinstance(self.scan, SampleScan):
            return next(field.dtype for field in self.scan.fields if field.key == source)
        return str(self.scan.converter.elements[source].dtype)

    def meant(self, meanings: Mapping[str, Meaning]) -> ScanSpec | SampleScan:
        """What it reads, with numbers that stand for this, by their column."""
        scan = self.scan
        return replace(scan, converter=scan.converter.meant(meanings)) if isinstance(scan, ScanSpec) else scan


def alike(sides: Sequence[Side], keys: Sequence[str]) -> list[ScanSpec | SampleScan]:
    """What the datasets read, with numbers in the finest unit and scale that one of them has.

    Args:
        sides: the datasets; all have these keys.
        keys: of the batches.

    Raises:
        OptionError: the numbers under a key stand for different things.
    """
    wanted: list[dict[str, Meaning]] = [{} for _ in sides]
    for key in keys:
        for columns in zip(*(side.sources(key) for side in sides), strict=False):  # of other lengths: other shapes
            found = [side.meaning(column) for side, column in zip(sides, columns, strict=True)]
            given = [pair for pair in found if pair is not None]
            if len(given) < len(sides):
                continue
            meaning = agreed(given)
            if meaning is None:
                raise _unlike(key, sides, columns, given)
            for meanings, column, (own, _) in zip(wanted, columns, given, strict=True):
                if own != NUMBERS and str(meanings.setdefault(column, meaning)) != str(meaning):
                    raise _unlike(key, sides, columns, given)
    return [side.meant(meanings) for side, meanings in zip(sides, wanted, strict=True)]


def _unlike(
    key: str, sides: Sequence[Side], columns: Sequence[str], given: Sequence[tuple[Meaning, bool]]
) -> OptionError:
    """The error for a key whose numbers stand for different things, which names two of the datasets."""
    other = next((at for at, pair in enumerate(given) if agreed([given[0], pair]) is None), len(sides) - 1)
    kinds = given[0][0].kind, given[other][0].kind
    ways = _ways(kinds, (sides[0], columns[0]), (sides[other], columns[other]))
    return OptionError(
        f"the datasets of a combination must have numbers that stand for the same: under the key {key!r}, those of "
        f"{sides[0].name} are {given[0][0]}, and those of {sides[other].name} {given[other][0]}."
        + ("" if ways else " Convert one of them in its transform."),
        remedies=ways,
    )


def _ways(kinds: tuple[str, str], first: tuple[Side, str], second: tuple[Side, str]) -> list[Remedy]:
    """Changes of the call that makes one of two datasets, whose numbers are of these kinds."""
    if "scaled decimals" in kinds:
        effect = "in the calls that make both"
        if NUMBERS.kind not in kinds:
            return [use(effect, decimals="float64")]
        return [use(effect, decimals="float64", dtypes=with_cast(None, **{first[1]: "float64"}))]
    if NUMBERS.kind in kinds:
        (side, name), (model, its) = (first, second) if kinds[1] == NUMBERS.kind else (second, first)
        casts = with_cast(None, **{name: model.dtype(its)})
        return [use(f"a plain number: in the call that makes {side.name}", dtypes=casts)]
    ways = []
    for (side, name), (model, its) in ((first, second), (second, first)):
        declared = _declared(side, name, model, its)
        if declared is not None:
            schema, kind = declared
            example = Example(f"pa.schema([..., ({name!r}, {kind})])", schema)
            ways.append(use(f"in the call that makes {side.name}", schema=example))
    return ways


def _declared(side: Side, name: str, model: Side, its: str) -> tuple[pa.Schema, str] | None:
    """A schema that declares a column to be of the type that another dataset has, and this type; None if it cannot."""
    scan, other = side.scan, model.scan
    if not (side.declares and isinstance(scan, ScanSpec) and isinstance(other, ScanSpec)):
        return None
    place = scan.schema.get_field_index(name)
    kind = other.converter.elements[its].type
    if place < 0 or not _casts(scan.schema.field(place).type, kind):
        return None
    return scan.schema.set(place, pa.field(name, kind)), str(kind)


def _casts(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pt.is_nested(given):
        return False
    try:
        pa.nulls(1, given).cast(wanted)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True
