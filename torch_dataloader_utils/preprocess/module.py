"""A fitted `Preprocess` as a `torch.nn.Module`, which torch.export and ONNX take, with the same bits as on rows.

Numbers are float64 up to the end of a chain, parameters are buffers, and only operations are used that ONNX has, too:
no searchsorted, bucketize, log1p or unsigned integers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from torch_dataloader_utils.errors import ColumnNotFoundError, UnsupportedTypeError
from torch_dataloader_utils.hashing import MASK, NULL, name_hash
from torch_dataloader_utils.preprocess.fitted import FittedOutput, id_of
from torch_dataloader_utils.preprocess.hashed import one_hash
from torch_dataloader_utils.preprocess.log1p import CONSTANTS, GREATEST, LEAST, ROOT_HALF, combined
from torch_dataloader_utils.preprocess.module_inputs import DTYPES, InputKind, inputs_of, mask_of
from torch_dataloader_utils.preprocess.target import TargetEncode
from torch_dataloader_utils.preprocess.transforms import (
    PARTS,
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Fitted,
    Hash,
    Impute,
    Log1p,
    MinMax,
    NumberTransform,
    Robust,
    Standardize,
    range_of,
    unit_of,
)
from torch_dataloader_utils.schemas.value_hashes import array_hashes

REFUSED = -(2**63)  # the id of what a Preprocess raises an error for: no embedding has it

Columns: TypeAlias = Mapping[str, Tensor]
Formula: TypeAlias = Callable[..., Tensor]


def _signed(bits: int) -> int:
    """64 bits as the int64 that they are."""
    return (bits & MASK) - (1 << 64) if bits >> 63 & 1 else bits & MASK


_NULL = _signed(NULL)


# Numbers: float64 tensors, in which NaN is missing, and parameters of shape [].


def _part_of(x: Tensor, from_: Tensor, width: Tensor, unit: Tensor) -> Tensor:
    return (x * unit - from_) / width


def _scaled(x: Tensor, *parameters: Tensor) -> Tensor:
    *range_, low, high, spread, from_high = parameters
    part = _part_of(x, *range_)
    return torch.where(part >= from_high, high - spread * (1.0 - part), part * spread + low)


def _clipped(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    x = torch.where(x < low, low, x)
    return torch.where(x > high, high, x)


def _scaled_within(x: Tensor, *parameters: Tensor) -> Tensor:
    *_, low, high, _, _ = parameters
    return _clipped(_scaled(x, *parameters), low, high)


def _without_sign_of_zero(x: Tensor) -> Tensor:
    return torch.where(x == 0, 0.0, x)  # x + 0.0 does the same, but optimizers of ONNX leave that out


def _clipped_to(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return _without_sign_of_zero(_clipped(x, low, high))


def _filled(x: Tensor, value: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), value, x)


_LOG1P = (ROOT_HALF, 2 * ROOT_HALF, LEAST, GREATEST, *CONSTANTS)
_POWERS = [2.0**-k for k in range(-54, 1023)]


def _log1p(x: Tensor, powers: Tensor, log1p: Tensor) -> Tensor:
    """As `log1p.log1p`."""
    lower, upper, least, greatest, *constants = log1p.unbind()
    near = (x > least) & (x < greatest)
    far = (x > -1.0) & (x < math.inf) & ~near
    u = torch.where(far, 1.0 + x, 1.0)
    # The logarithm only estimates the exponent, so that its last bits do not matter.
    k = torch.floor(torch.log(u) * (1 / math.log(2))).to(torch.int64).clamp(-53, 1022)
    fraction = u * torch.index_select(powers, 0, k + 54)
    for wrong, factor, more in ((torch.ge, 0.5, 1), (torch.ge, 0.5, 1), (torch.lt, 2.0, -1)):
        moved = wrong(fraction, upper if more == 1 else lower)
        fraction, k = torch.where(moved, fraction * factor, fraction), torch.where(moved, k + more, k)
    rest = torch.where(u >= 2.0, 1.0 - (u - x), x - (u - 1.0)) / u
    found = combined(
        torch.where(near, x, fraction - 1.0),
        torch.where(far, rest, 0.0),
        torch.where(far, k, 0).to(torch.float64),
        constants,
    )
    ends = torch.where(x == -1.0, -math.inf, torch.where(x == math.inf, x, math.nan))
    result: Tensor = torch.where(near | far, found, ends)
    return result


def _signed_log1p(x: Tensor, powers: Tensor, log1p: Tensor) -> Tensor:
    found = _log1p(torch.abs(x), powers, log1p)
    return torch.where(x < 0, -found, found)


def _distance(center: float, width: float) -> tuple[float, float, float]:
    unit = unit_of(center, width)
    return center * unit, width * unit, unit


def _formula(link: NumberTransform | Impute, fitted: Fitted) -> tuple[Formula, Sequence[float | Sequence[float]]]:
    """What a link does to numbers, and its parameters."""
    if isinstance(link, Standardize):
        return _part_of, _distance(fitted["mean"], fitted["std"])
    if isinstance(link, Robust):
        return _part_of, _distance(fitted["median"], fitted["range"])
    if isinstance(link, MinMax):
        range_ = range_of(fitted["least"], fitted["greatest"])
        return _scaled_within if link.clip else _scaled, (*range_, *link.onto())
    if isinstance(link, Clip):
        return _clipped_to, link.bounds_of(fitted)
    if isinstance(link, Log1p):
        return _signed_log1p if link.signed else _log1p, (_POWERS, _LOG1P)
    assert isinstance(link, Impute)
    return _filled, (link.number_of(fitted),)


class _LinkModule(nn.Module):
    """A formula with its parameters."""

    def __init__(self, formula: Formula, parameters: Sequence[float | Sequence[float]]) -> None:
        super().__init__()
        self._formula, self._count = formula, len(parameters)
        for i, value in enumerate(parameters):
            self.register_buffer(f"parameter_{i}", torch.tensor(value, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self._formula(x, *(getattr(self, f"parameter_{i}") for i in range(self._count)))


# Hashes: int64 tensors of 64 bits.


def _shifted(z: Tensor, bits: int) -> Tensor:
    """The bits shifted to the right, with zeros from the left."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(z: Tensor) -> Tensor:
    """As `hashing.mixed`."""
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _bucket(hashes: Tensor, n: int, seed: int) -> Tensor:
    """As `hashed.buckets`."""
    return _shifted(_shifted(_mixed(hashes ^ _signed(name_hash("hash", seed))), 32) * (n - 1), 32) + 1


class _Keys(NamedTuple):
    """Values of which ids are made, each a tensor [rows].

    Attributes:
        hashes: of the values, int64; those of null for missing ones and for floats without a hash.
        missing: which are missing.
        signed: which can be in a vocabulary: floats that are whole numbers of 64 bits with a sign; None: all.
        hashed: which have a hash: floats that are whole numbers; None: all.
    """

    hashes: Tensor
    missing: Tensor
    signed: Tensor | None = None
    hashed: Tensor | None = None


def _keys_of_ints(values: Tensor, missing: Tensor) -> _Keys:
    return _Keys(torch.where(missing, _NULL, _mixed(values + _NULL)), missing)


def _keys_of_floats(x: Tensor) -> _Keys:
    missing = torch.isnan(x)
    whole = (torch.floor(x) == x) & (x >= -(2.0**63)) & (x < 2.0**64)
    signed = whole & (x < 2.0**63)
    unsigned = torch.where(whole & ~signed, x - 2.0**64, 0.0).to(torch.int64)
    values = torch.where(signed, torch.where(signed, x, 0.0).to(torch.int64), unsigned)
    return _Keys(_keys_of_ints(values, ~whole).hashes, missing, signed, whole | missing)


def _search(sorted_: Tensor, x: Tensor, before: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The number of sorted values, of a power of two less 1, that come before each of x; of these, the first do."""
    place = torch.zeros_like(x, dtype=torch.int64)
    step = len(sorted_) // 2
    while step:
        goes_on = before(torch.index_select(sorted_, 0, place + (step - 1)), x)
        place = place + goes_on.to(torch.int64) * step  # faster than where in onnxruntime
        step //= 2
    return place


class _BucketModule(nn.Module):
    """Ids by bounds."""

    bounds: Tensor

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__()
        # No number comes behind NaN.
        padded = [*bounds, *[math.nan] * ((1 << len(bounds).bit_length()) - len(bounds))]
        self.register_buffer("bounds", torch.tensor(padded, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(torch.isnan(x), 0, _search(self.bounds, x, torch.le) + 1)


class _HashModule(nn.Module):
    """Ids by a hash."""

    def __init__(self, link: Hash) -> None:
        super().__init__()
        self._n, self._seed = link.n, link.seed

    def forward(self, keys: _Keys) -> Tensor:
        ids = _bucket(keys.hashes, self._n, self._seed)
        if keys.hashed is not None:
            ids = torch.where(keys.hashed, ids, REFUSED)
        return torch.where(keys.missing, 0, ids)


class _CategoryModule(nn.Module):
    """Ids by a vocabulary, as the sorted hashes of its values and their ids."""

    hashes: Tensor
    ids: Tensor

    def __init__(self, link: Categorize, fitted: Fitted) -> None:
        super().__init__()
        self._unknown = REFUSED if link.unknown == "error" else 1
        self._unknown_ids = 1 if link.unknown == "error" else link.unknown_ids
        first, null = 1 + link.unknown_ids, fitted.get("null")
        self._missing = 0 if null is None else first + null
        hashes = array_hashes(fitted["vocabulary"].array, floats=True).view(np.int64)
        ids = np.arange(first, first + len(hashes))
        if null is not None:
            ids[null:] += 1
        order = np.argsort(hashes)
        # The search finds the first of equal ones, so that the last one may fill up.
        more = (0, (1 << max(len(hashes) - 1, 0).bit_length()) - len(hashes)) if len(hashes) else (0, 0)
        self.register_buffer("hashes", torch.from_numpy(np.pad(hashes[order], more, "edge")))
        self.register_buffer("ids", torch.from_numpy(np.pad(ids[order], more, "edge")))

    def forward(self, keys: _Keys) -> Tensor:
        ids = torch.full_like(keys.hashes, self._unknown)
        if self._unknown_ids > 1:
            ids = _bucket(keys.hashes, self._unknown_ids + 1, 0)
        if len(self.hashes):
            place = _search(self.hashes, keys.hashes, torch.lt)
            known = torch.index_select(self.hashes, 0, place) == keys.hashes
            if keys.signed is not None:
                known = known & keys.signed
            ids = torch.where(known, torch.index_select(self.ids, 0, place), ids)
        return torch.where(keys.missing, self._missing, ids)


class _TargetModule(nn.Module):
    """The means of a target, by a vocabulary: [rows, outputs]."""

    means: Tensor

    def __init__(self, each: FittedOutput) -> None:
        super().__init__()
        self.ids = _CategoryModule(Categorize(), each.fitted[-1])
        means = each.encoding[:, 0]  # of values, and last of unseen and missing ones
        self.register_buffer("means", torch.from_numpy(np.concatenate([means[:-3:-1], means[:-2]])))

    def forward(self, keys: _Keys) -> Tensor:
        return torch.index_select(self.means, 0, self.ids(keys))


def _ids_module(link: Hash | Categorize, fitted: Fitted) -> nn.Module:
    return _HashModule(link) if isinstance(link, Hash) else _CategoryModule(link, fitted)


def _last_module(each: FittedOutput) -> nn.Module:
    """What the last link makes of values as ids are made of them."""
    if isinstance(each.last, TargetEncode):
        return _TargetModule(each)
    assert isinstance(each.last, (Hash, Categorize))
    return _ids_module(each.last, each.fitted[-1])


def _named(names: Sequence[str], found: Tensor, indicator: Tensor | None) -> dict[str, Tensor]:
    """The columns of an output by name, and an indicator behind them."""
    columns = (found,) if found.ndim == 1 else found.unbind(1)
    return dict(zip(names, columns if indicator is None else (*columns, indicator), strict=True))


# Columns.


class _ModuleInput(NamedTuple):
    """How a column is read.

    Attributes:
        name: of the column.
        kind: of what is given.
    """

    name: str
    kind: InputKind

    def missing(self, columns: Columns) -> Tensor:
        """Which values are missing."""
        x = columns[self.name]
        if self.kind == "number":
            return torch.isnan(x)
        if self.kind == "hash":
            return x == _NULL
        mask = columns.get(mask_of(self.name))
        return torch.zeros_like(x, dtype=torch.bool) if mask is None else mask

    def numbers(self, columns: Columns) -> Tensor:
        """As float64, with NaN for missing ones."""
        x = columns[self.name].to(torch.float64)
        if self.kind == "int":
            x = torch.where(self.missing(columns), math.nan, x)
        return _without_sign_of_zero(x)

    def keys(self, columns: Columns, fill: Tensor | None = None) -> _Keys:
        """As ids are made of them, with a value in place of missing ones."""
        x, missing = columns[self.name].to(getattr(torch, DTYPES[self.kind])), self.missing(columns)
        if fill is not None:
            x, missing = torch.where(missing, fill, x), torch.zeros_like(missing)
        if self.kind == "hash":
            return _Keys(x, missing)
        return _keys_of_floats(x) if self.kind == "number" else _keys_of_ints(x, missing)


class _NumberModule(nn.Module):
    """Outputs of a chain of numbers: numbers or ids, and an indicator."""

    def __init__(self, each: FittedOutput, column: _ModuleInput) -> None:
        super().__init__()
        self._column, self._names, self._dtype = column, each.names, getattr(torch, each.dtype)
        self.links = nn.ModuleList(_LinkModule(*_formula(link, fitted)) for link, fitted in each.links)  # type: ignore[arg-type]
        marks = [isinstance(link, Impute) and link.indicator for link, _ in each.links]
        self._indicated = marks.index(True) if any(marks) else None
        last = each.last
        self._of_keys = last.ends and not isinstance(last, Bucketize)
        self.ids: nn.Module | None = None
        if isinstance(last, Bucketize):
            self.ids = _BucketModule(last.bounds_of(each.fitted[-1]))
        elif last.ends:
            self.ids = _last_module(each)

    def forward(self, columns: Columns) -> dict[str, Tensor]:
        x, indicator = self._column.numbers(columns), None
        for i, link in enumerate(self.links):
            if i == self._indicated:
                indicator = torch.isnan(x).to(self._dtype)
            x = link(x)
        x = _without_sign_of_zero(x)
        if self.ids is None:
            return _named(self._names, x.to(self._dtype), indicator)
        return _named(self._names, self.ids(_keys_of_floats(x) if self._of_keys else x), indicator)


def _fill_of(each: FittedOutput, dtype: str, of: Callable[[Any], Any] = lambda value: value) -> Tensor | None:
    """What the first `Impute` of a chain fills in; None without one."""
    fills = [of(link.fill_of(fitted)) for link, fitted in each.links if isinstance(link, Impute)]
    return torch.tensor(fills[0], dtype=getattr(torch, dtype)) if fills else None


class _ValueModule(nn.Module):
    """Outputs of values of any kind: ids, and an indicator."""

    fill: Tensor | None

    def __init__(self, each: FittedOutput, column: _ModuleInput) -> None:
        super().__init__()
        self._column, self._names, self._dtype = column, each.names, getattr(torch, each.dtype)
        hashed = (lambda value: _signed(one_hash(value)),) if column.kind == "hash" else ()
        self.register_buffer("fill", _fill_of(each, DTYPES[column.kind], *hashed))
        self._indicated = any(isinstance(link, Impute) and link.indicator for link, _ in each.links)
        self.ids = _last_module(each)

    def forward(self, columns: Columns) -> dict[str, Tensor]:
        indicator = self._column.missing(columns).to(self._dtype) if self._indicated else None
        return _named(self._names, self.ids(self._column.keys(columns, self.fill)), indicator)


class _FillModule(nn.Module):
    """Outputs of numbers that are only filled, in their own type, and an indicator."""

    fill: Tensor

    def __init__(self, each: FittedOutput, column: _ModuleInput) -> None:
        super().__init__()
        self._column, self._names, self._dtype = column, each.names, getattr(torch, each.dtype)
        self._bools = each.types[0].text == "bool"
        self.register_buffer("fill", _fill_of(each, DTYPES[column.kind]))

    def forward(self, columns: Columns) -> dict[str, Tensor]:
        x, missing = columns[self._column.name], self._column.missing(columns)
        # Whole numbers are given as int64, whatever they are; floats keep their width.
        x = x if self._column.kind == "number" else x.to(torch.int64)
        x = torch.where(missing, self.fill.to(x.dtype), x)
        made = {self._names[0]: x.to(torch.bool) if self._bools else x}
        return {**made, self._names[1]: missing.to(self._dtype)} if len(self._names) > 1 else made


class _CrossModule(nn.Module):
    """The output of several columns' values together."""

    def __init__(self, each: FittedOutput, columns: Sequence[_ModuleInput]) -> None:
        super().__init__()
        self._columns, self._name = tuple(columns), each.output.name
        assert isinstance(each.last, Cross)
        self._by_hash = isinstance(each.last.of, Hash)
        self.ids = _ids_module(each.last.of, each.fitted[-1])

    def forward(self, columns: Columns) -> dict[str, Tensor]:
        parts = [column.keys(columns) for column in self._columns]
        hashes, missing = torch.zeros_like(parts[0].hashes), torch.ones_like(parts[0].missing)
        for keys in parts:
            hashes = _mixed(hashes + 1) ^ keys.hashes
            missing = missing & keys.missing
        never = torch.zeros_like(missing)
        ids = self.ids(_Keys(hashes, never) if self._by_hash else _keys_of_ints(hashes, never))
        for keys in parts:
            if keys.hashed is not None:
                ids = torch.where(keys.hashed, ids, REFUSED)
        return {self._name: torch.where(missing, 0, ids)}


# Dates and times: int64 tensors of microseconds since 1970.

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_ERA = 146_097  # days of 400 years


def _divided(x: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """The quotient, rounded down, and the rest."""
    # ONNX divides towards 0.
    quotient = x // by
    quotient = torch.where(x < quotient * by, quotient - 1, quotient)
    return quotient, x - quotient * by


def _calendar(days: Tensor) -> dict[str, Tensor]:
    """Year, month, day and day of the year of days since 1970; years begin in March, so that a leap day is the last."""
    era, day = _divided(days + 719_468, _ERA)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    early = month >= 10  # January and February
    full = year + era * 400 + early.to(torch.int64)
    _, of_era = _divided(full, 400)
    leap = ((of_era % 4 == 0) & (of_era % 100 != 0)) | (of_era == 0)
    return {
        "year": full,
        "month": torch.where(early, month - 9, month + 3),
        "day": of_year - (153 * month + 2) // 5 + 1,
        "dayofyear": torch.where(early, of_year - 305, of_year + 60 + leap.to(torch.int64)),
    }


def _part(part: str, times: Tensor) -> Tensor:
    days, time = _divided(times, _DAY)
    if part == "weekday":
        return _divided(days + 3, 7)[1] + 1
    if part in ("hour", "minute", "second"):
        seconds = time // _SECOND
        return {"hour": seconds // 3600, "minute": seconds // 60 % 60, "second": seconds % 60}[part]
    return _calendar(days)[part]


class _DateModule(nn.Module):
    """Outputs of parts of times."""

    def __init__(self, each: FittedOutput, column: _ModuleInput) -> None:
        super().__init__()
        assert isinstance(each.last, DateParts)
        self._column, self._names, self._dtype = column, each.names, getattr(torch, each.dtype)
        self._parts, self._cyclic = tuple(each.last.parts), each.last.cyclic
        for part in self._parts if self._cyclic else ():
            count = PARTS[part][1]
            for name, function in (("sin", math.sin), ("cos", math.cos)):
                values = [function(float(i) * (2 * math.pi / count)) for i in range(count)]
                self.register_buffer(f"{name}_{part}", torch.tensor(values, dtype=torch.float64))

    def forward(self, columns: Columns) -> dict[str, Tensor]:
        times, missing = columns[self._column.name], self._column.missing(columns)
        made: list[Tensor] = []
        for part in self._parts:
            numbers = _part(part, times)
            if not self._cyclic:
                made.append(torch.where(missing, 0, numbers + id_of(part)))
                continue
            for name in ("sin", "cos"):
                values = torch.index_select(getattr(self, f"{name}_{part}"), 0, numbers - PARTS[part][0])
                made.append(torch.where(missing, math.nan, values).to(self._dtype))
        return dict(zip(self._names, made, strict=True))


def _module_of(each: FittedOutput, columns: Sequence[_ModuleInput]) -> nn.Module:
    if isinstance(each.last, Cross):
        return _CrossModule(each, columns)
    if isinstance(each.last, DateParts):
        return _DateModule(each, columns[0])
    if each.output.numeric:
        return _NumberModule(each, columns[0])
    return _ValueModule(each, columns[0]) if each.last.ends else _FillModule(each, columns[0])


class PreprocessModule(nn.Module):
    """Tensors by column to tensors by output: what `Preprocess.to_module` returns.

    Attributes:
        inputs: the dtype of each tensor that it is given, by name: what `Preprocess.arrays` returns. The bools
            `<column>_missing` may be left out if nothing is missing.
        outputs: the names of what it returns.
    """

    def __init__(self, fitted: Sequence[FittedOutput], names: Sequence[str]) -> None:
        super().__init__()
        kinds = inputs_of(fitted)
        self.outputs = list(names)
        self.inputs: dict[str, torch.dtype] = {}
        for column, kind in kinds.items():
            self.inputs[column] = getattr(torch, DTYPES[kind])
            if kind in ("int", "time"):
                self.inputs[mask_of(column)] = torch.bool
        self._needed = list(kinds)
        self.steps = nn.ModuleList(
            _module_of(each, [_ModuleInput(name, kinds[name]) for name in each.output.columns]) for each in fitted
        )
        self.eval()  # nothing in it differs in training

    def example(self, rows: int = 2) -> dict[str, Tensor]:
        """Tensors of zeros as it is given, of which torch.export and ONNX take dtypes and names."""
        device = next((buffer.device for buffer in self.buffers()), None)
        return {name: torch.zeros(rows, dtype=dtype, device=device) for name, dtype in self.inputs.items()}

    @property
    def dynamic_shapes(self) -> dict[str, Any]:
        """What torch.export is told of the shapes of `example()`: any number of rows."""
        return {"columns": {name: {0: torch.export.Dim.DYNAMIC} for name in self.inputs}}

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write it as an ONNX model: inputs have the names of `inputs`, outputs those of `outputs` after "out.".

        Args:
            path: of the file. It needs the packages onnx and onnxscript.
        """
        torch.onnx.export(
            self,
            kwargs={"columns": self.example()},
            f=os.fspath(path),
            input_names=list(self.inputs),
            output_names=[f"out.{name}" for name in self.outputs],  # a name may be that of a column, too
            dynamic_shapes=self.dynamic_shapes,
            dynamo=True,
            external_data=False,
            optimize=False,  # onnxruntime does that; here it takes most of the time
            verbose=False,
        )

    def forward(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of columns, of shape [rows] each.

        Raises:
            ColumnNotFoundError: columns are missing; it names all of them.
            UnsupportedTypeError: floats are given where whole numbers or hashes are expected.
        """
        missing = sorted(set(self._needed) - columns.keys())
        if missing:
            raise ColumnNotFoundError(f"no columns {missing}, which this module needs: there are {list(columns)}.")
        for name in self._needed:
            if columns[name].is_floating_point() and not self.inputs[name].is_floating_point:
                raise UnsupportedTypeError(
                    f"column {name!r} is {columns[name].dtype}: expected {self.inputs[name]}, as "
                    "Preprocess.arrays(rows) returns it."
                )
        made: dict[str, Tensor] = {}
        for step in self.steps:
            made |= step(columns)
        return {name: made[name] for name in self.outputs}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PreprocessModule:
        """Move it to another device; `half()` and the like of a module around it leave its dtypes alone."""

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if found.dtype == tensor.dtype else tensor.to(found.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self
