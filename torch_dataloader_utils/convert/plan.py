"""From a schema and the conversion options to one plan per output column; raises all errors that need no data."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.buffers import is_binary, unencoded
from torch_dataloader_utils.convert.codes import CodesLeaf, given_vocabulary, with_fill
from torch_dataloader_utils.convert.dtypes import Casts, casts_of, with_cast, words_of
from torch_dataloader_utils.convert.elements import Element, element_of, null_blank
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.convert.leaves import Leaf, ListLeaf, ObjectsLeaf, ScalarLeaf, TensorLeaf, TextLeaf
from torch_dataloader_utils.convert.meaning import NUMBERS, Meaning, unlike
from torch_dataloader_utils.errors import Example, NullValueError, OptionError, Remedy, leave_out, use
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.options import ConvertOptions
from torch_dataloader_utils.options.by_column import ALL, Leaves, leaves, with_leaf, without_leaf
from torch_dataloader_utils.options.lists import Padded
from torch_dataloader_utils.options.nulls import Fill
from torch_dataloader_utils.options.packing import IGNORED, LABELS
from torch_dataloader_utils.options.strings import Codes, codes_in
from torch_dataloader_utils.printing import shown

_NUMBERS = (ScalarLeaf, TensorLeaf, ListLeaf)


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How one output column is converted.

    Attributes:
        key: output key: the column's name, or `parent.child` of a struct's field.
        column: the table's column.
        path: indices of the fields to descend into in structs; () for a plain column.
        column_type: the column's type in the table.
        leaf: the conversion.
        nulls: "own" (the output has NaN or None), "error", "mask", "fill" or "drop".
        transformed: whether a transform returns the column.
    """

    key: str
    column: str
    path: tuple[int, ...]
    column_type: pa.DataType
    leaf: Leaf
    nulls: str = "own"
    transformed: bool = False

    @property
    def mask_key(self) -> str:
        """The key of the mask that `nulls="mask"` adds."""
        return f"{self.key}_valid"

    def chunks_of(self, column: pa.ChunkedArray) -> list[pa.Array]:
        """The leaf's arrays; a null struct has null fields."""
        chunks: list[pa.Array] = [column.chunk(0)] if column.num_chunks == 1 else column.chunks
        return [pc.struct_field(chunk, list(self.path)) for chunk in chunks] if self.path else chunks

    def null_error(self, where: str, given: Any) -> NullValueError:
        """The error for a null somewhere in `where`.

        Args:
            where: names the rows.
            given: `nulls=`, what of it says of other columns a remedy keeps.
        """
        name, output = self.key, self.leaf.report()
        kind = "" if output["kind"] == "dense" else f" ({output['kind']})"
        no_null = f"{output['dtype']}{kind} cannot hold nulls"
        filled = Fill(self.filler)

        def instead(leaf: Any) -> dict[str, Any]:
            return with_leaf(given, "error", name, leaf)

        if self.unfilled:
            return NullValueError(
                f"column {name!r} has a null in {where}: its fill value replaces null lists, and this null is in "
                "a list.",
                remedies=[use("replaces both", nulls=instead(Example("Fill(number)", filled)))],
            )
        can_be_nan = isinstance(self.leaf, ScalarLeaf) and self.leaf.element.holds_null
        if can_be_nan:  # only a dict asks for an error
            no_null = "nulls= says 'error' for it"
        if self.nulls == "drop":
            no_null = "nulls='drop' looks at what transform gets, and this null is in what it returned"
        ways = [
            use(f"adds the mask {self.mask_key!r}", nulls=instead("mask")),
            use(nulls=instead(Example("Fill(value)", filled))),
        ]
        named = isinstance(given, Mapping) and name in given  # then it is no NaN, whatever its dtype
        if isinstance(self.leaf, ScalarLeaf) and (named or not can_be_nan):
            wider = {} if can_be_nan else {"dtypes": {name: "float64"}}
            rest = without_leaf(given, name) if named else {}
            policy = {"nulls": rest} if rest else {}
            ways.append(use("NaN", without=["nulls"] if named and not rest else [], **wider, **policy))
        message = f"column {name!r} has a null in {where}: {no_null}."
        if self.nulls == "drop" or self.transformed:
            return NullValueError(f"{message} Leave such rows out with filters= or in transform.", remedies=ways)
        ways.append(use("leaves out such rows", nulls=instead("drop")))
        return NullValueError(message, remedies=ways)

    @property
    def filler(self) -> Any:
        """A value that may replace nulls."""
        return self.leaf.kind() if isinstance(self.leaf, TextLeaf) else 0

    def report(self) -> dict[str, Any]:
        """Arrow type, kind, dtype, shape, null policy and, if any, unit, timezone and scale."""
        type_ = self.column_type
        for place in self.path:
            type_ = type_.field(place).type
        report = {"arrow": str(type_), **self.leaf.report(), "nulls": self.nulls}
        return report if self.element is None else report | _units(self.element)

    @property
    def element(self) -> Element | None:
        """How its numbers are converted; None for columns of strings and objects."""
        return self.leaf.element if isinstance(self.leaf, _NUMBERS) else None

    @property
    def unfilled(self) -> bool:
        """Whether nulls are filled, but not those in lists."""
        leaf = self.leaf
        filled = isinstance(leaf, (TensorLeaf, ListLeaf)) and leaf.fill is not None
        return filled and not (isinstance(leaf, ListLeaf) and leaf.fills_values)

    @property
    def meaning(self) -> tuple[Meaning, bool]:
        """What its numbers stand for, and whether `dtypes=` names the column."""
        return (NUMBERS, False) if self.element is None else (self.element.meaning, self.element.named)

    def meant(self, meaning: Meaning) -> ColumnPlan:
        """The plan whose numbers stand for this (see `meaning.common`)."""
        leaf = self.leaf
        if not isinstance(leaf, _NUMBERS):
            return self
        if isinstance(leaf, (TensorLeaf, ListLeaf)) and leaf.fill is not None:
            flat = [leaf.element.times(self.key, value, meaning) for value in leaf.fill.reshape(-1)]
            leaf = replace(leaf, fill=np.array(flat, leaf.fill.dtype).reshape(leaf.fill.shape))
        return replace(self, leaf=replace(leaf, element=leaf.element.meant(self.key, meaning)))


def _units(element: Element) -> dict[str, Any]:
    """Unit and timezone of a date, scale of a scaled decimal."""
    units = {"unit": element.meaning.unit} if element.meaning.unit else {}
    if pt.is_timestamp(element.type):
        return {**units, "timezone": element.type.tz}
    return {"scale": element.meaning.scale} if element.read == "scaled_decimal" else units


@dataclass(frozen=True, slots=True)
class _Field:
    """One leaf of the schema."""

    key: str
    column: str
    path: tuple[int, ...]
    column_type: pa.DataType
    type: pa.DataType


def column_plans(schema: pa.Schema, options: ConvertOptions) -> tuple[ColumnPlan, ...]:
    """One plan per leaf of the schema, in its order.

    Raises:
        OptionError: an option names an unknown column or does not fit its column.
        UnsupportedTypeError: a type does not have the requested tensor form.
    """
    fields = [leaf for field in schema for leaf in _leaves(field.name, field.name, (), field.type, field.type)]
    keys = dict.fromkeys(field.key for field in fields)  # each column looks for its own among them
    asked = _Asked(
        options,
        casts_of(options.dtypes, keys, options.stack),
        leaves("nulls", options.nulls, keys),
        leaves("decimals", options.decimals, keys),
        leaves("strings", options.strings, keys),
        leaves("lists", options.lists, keys),
        frozenset(source for sources in (options.jagged or {}).values() for source in sources),
    )
    plans = tuple(_plans(fields, asked))
    _check_codes(asked.strings, plans, {field.key: field.type for field in fields})
    return plans


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options ask of the columns of a schema."""

    options: ConvertOptions
    casts: Casts
    nulls: Leaves
    decimals: Leaves
    strings: Leaves
    lists: Leaves
    joined: Collection[str]


def _leaves(
    key: str, column: str, path: tuple[int, ...], column_type: pa.DataType, type_: pa.DataType
) -> Iterator[_Field]:
    if not pt.is_struct(type_) or not type_.num_fields:
        yield _Field(key, column, path, column_type, type_)
        return
    for i in range(type_.num_fields):
        child = type_.field(i)
        yield from _leaves(f"{key}.{child.name}", column, (*path, i), column_type, child.type)


def _check_codes(asked: Leaves, plans: Sequence[ColumnPlan], types: Mapping[str, pa.DataType]) -> None:
    """Check that each column whose values `Codes` names has codes."""
    leaves_of = {plan.key: plan.leaf for plan in plans}
    for key, codes in codes_in(asked.given).items():
        values = codes.values if isinstance(codes.values, Mapping) else {}
        for name in leaves("Codes", values, asked.columns).given if values else ():
            if name in leaves_of and not isinstance(leaves_of[name], CodesLeaf):
                rest = codes.replace(values=without_leaf(values, name) or None)
                raise OptionError(
                    f"Codes names {name!r} of type {types[name]}, which has no codes: expected a column of strings, "
                    "bytes or whole numbers.",
                    remedies=[use(strings=rest if asked.given.keys() == {ALL} else {**asked.given, key: rest})],
                )


def _plans(fields: Sequence[_Field], asked: _Asked) -> Iterator[ColumnPlan]:
    """The plan of each leaf; if no option is by column, those of one type share their conversion."""
    given = (asked.options.dtypes, asked.nulls.given, asked.decimals.given, asked.strings.given, asked.lists.given)
    named = any(isinstance(each, Mapping) and set(each) != {ALL} for each in given)
    filled = any(isinstance(getattr(policy, "value", None), Mapping) for policy in asked.nulls.given.values())
    coded = any(isinstance(codes.values, Mapping) for codes in codes_in(asked.strings.given).values())
    by_column = named or filled or coded or bool(asked.joined)
    alike: dict[pa.DataType, ColumnPlan] = {}
    for field in fields:
        known = alike.get(field.type)
        if known is None:
            plan = _plan(field, asked)
            if not by_column and not isinstance(plan.leaf, CodesLeaf):  # which names its column
                alike[field.type] = plan
            yield plan
        else:
            yield ColumnPlan(field.key, field.column, field.path, field.column_type, known.leaf, known.nulls)


def _plan(field: _Field, asked: _Asked) -> ColumnPlan:
    leaf = _with_form(field, _with_dtype(field, _leaf(field, asked), asked.casts), asked)
    nulls, fill = _policy(field, leaf, asked.nulls)
    if nulls == "fill":
        leaf = _with_fill(field, leaf, fill)
    return ColumnPlan(field.key, field.column, field.path, field.column_type, leaf, nulls)


def _leaf(field: _Field, asked: _Asked) -> Leaf:
    """The conversion of a type, before `dtypes=`, `lists=` and the null policy apply."""
    bare, steps = unencoded(field.type)
    decimals = _decimals(field, bare.value_type if _is_list(bare) else bare, asked.decimals)
    if pt.is_string(bare) or pt.is_large_string(bare) or is_binary(bare):
        _, word = asked.strings.of(field.key, _text_words(bare)) or ("", "list")
        return _codes(field.key, bare, steps, asked) or TextLeaf(bare, steps, word == "bytes")
    if pt.is_integer(bare) and (codes := _codes(field.key, bare, steps, asked)) is not None:
        return codes
    if field.key in asked.strings.given:
        raise _misnamed("strings", field, "strings or bytes, or of whole numbers for codes", asked.strings.given)
    element = element_of(field.key, field.type, decimals)
    if element is not None:
        return ScalarLeaf(element)
    element = element_of(field.key, bare.value_type, decimals) if _is_list(bare) else None
    if element is not None and pt.is_fixed_size_list(bare):
        return _tensors(element, steps, field.type, bare)
    if element is not None:
        return ListLeaf(element, steps, bare)
    return ObjectsLeaf(field.type)


def _decimals(field: _Field, type_: pa.DataType, asked: Leaves) -> str:
    """How the decimals of a column, or of its lists, are read."""
    is_decimal = pt.is_decimal(unencoded(type_)[0])
    key, word = asked.of(field.key, ("decimal",) if is_decimal else ()) or ("", "float64")
    if key == field.key and not is_decimal:
        raise _misnamed("decimals", field, "decimals", asked.given)
    return str(word)


def _misnamed(option: str, field: _Field, expected: str, given: Mapping[str, Any]) -> OptionError:
    """The error for an option that names a column of another type."""
    rest: dict[str, Any] = {option: without_leaf(given, field.key)}
    return OptionError(
        f"{option} names {field.key!r} of type {field.type}: expected a column of {expected}.",
        remedies=[use(**rest) if rest[option] else leave_out(option)],
    )


def _tensors(element: Element, steps: tuple[str, ...], type_: pa.DataType, bare: pa.DataType) -> TensorLeaf:
    """The conversion of vectors and tensors; Arrow's permutation gives the stored dimension for each of the output."""
    if not isinstance(type_, pa.FixedShapeTensorType):
        return TensorLeaf(element, steps, (bare.list_size,))
    stored = tuple(type_.shape)
    axes = tuple(type_.permutation or range(len(stored)))
    dims = tuple(type_.dim_names[axis] for axis in axes) if type_.dim_names else ()
    return TensorLeaf(element, steps, stored, () if axes == tuple(range(len(stored))) else axes, dims)


def _codes(key: str, bare: pa.DataType, steps: tuple[str, ...], asked: _Asked) -> CodesLeaf | None:
    """The conversion to codes, if they are asked for; for whole numbers by a key other than "*"."""
    words = (str(bare),) if pt.is_integer(bare) else _text_words(bare)
    by, _ = asked.strings.of(key, words) or ("", None)
    codes = codes_in({by: asked.strings.given.get(by)}).get(by)
    if codes is None:
        return None
    values: Any = codes.values
    if isinstance(values, Mapping):
        named, values = leaves("Codes", values, asked.strings.columns).of(key, words) or (by, None)
        by = by if named == ALL else named
    if by == ALL and pt.is_integer(bare):
        return None
    given = None if values is None else given_vocabulary(key, bare, values)
    given_strings = asked.options.strings
    ways = (
        use(
            "collects all values with a scan when the loader is created, again if the files have changed since",
            strings=Example(f"{{..., {key!r}: 'codes'}}", with_leaf(given_strings, "list", key, "codes")),
        ),
        use(
            strings=Example(
                f"{{..., {key!r}: Codes([...], unknown=code)}}",
                with_leaf(given_strings, "list", key, Codes(values, unknown=-1)),
            ),
        ),
    )
    code = None if codes.unknown == "error" else int(codes.unknown)
    return CodesLeaf(key, bare, steps, given, unknown=code, ways=ways)


def _is_list(type_: pa.DataType) -> bool:
    kinds = (pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view, pt.is_fixed_size_list)
    return pt.is_nested(type_) and any(is_kind(type_) for is_kind in kinds)


def _with_dtype(field: _Field, leaf: Leaf, casts: Casts) -> Leaf:
    """The leaf with the dtype that `dtypes=` requests."""
    if isinstance(leaf, _NUMBERS):
        dtype, named = casts.of(field.key, leaf.element)
        if dtype is None:
            return leaf
        return replace(leaf, element=replace(leaf.element, dtype=dtype, blank=null_blank(dtype), named=named))
    if field.key in casts.named.given:
        raise _misnamed("dtypes", field, "numbers", {name: str(dtype) for name, dtype in casts.named.given.items()})
    return leaf


def _with_form(field: _Field, leaf: Leaf, asked: _Asked) -> Leaf:
    """The leaf whose lists have the form that `lists=` requests; those that `jagged=` joins have none of their own."""
    given = asked.lists.given
    if not isinstance(leaf, ListLeaf) or field.key in asked.joined:
        if field.key in given:
            expected = "lists of numbers, of varying length, that jagged does not join"
            raise _misnamed("lists", field, expected, given)
        return leaf
    _, form = asked.lists.of(field.key, words_of(leaf.element)) or (ALL, "ragged")
    padded = Padded() if form == "padded" else form
    if not isinstance(padded, Padded):
        return replace(leaf, layout=form)
    zeros = use("pads it with 0", lists=with_leaf(given, "ragged", field.key, padded.replace(value=0)))
    filled = _usual_pad(field, leaf) if padded.value is None else padded.value
    value = pad_value(f"{padded!r} for column {field.key!r}", filled, leaf.element.dtype, zeros)
    return replace(leaf, layout=Padding(value, padded.multiple))


def _usual_pad(field: _Field, leaf: ListLeaf) -> int:
    """What lists are filled up with: labels with what losses leave out, as packed ones are, all others with 0."""
    return IGNORED if field.key == LABELS and leaf.element.dtype.kind == "i" else 0


def pad_value(where: str, value: Any, dtype: np.dtype[Any], *remedies: Remedy) -> Any:
    """What fills lists up, as a scalar of the dtype of their column.

    Raises:
        OptionError: it is not a number that fits.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    number = isinstance(plain, (int, float)) and (dtype.kind == "b" or not isinstance(plain, bool))
    if not number or not fits(plain, dtype):
        raise OptionError(f"{where}: expected a number that fits {dtype}.", remedies=remedies)
    return dtype.type(plain)


def _policy(field: _Field, leaf: Leaf, asked: Leaves) -> tuple[str, Any]:
    """The null policy of a column, and what fills its nulls.

    What is said of all columns applies to those whose output has no null of its own, or that can hold the value that
    fills nulls; a column, pattern or type that is named gets what is asked for.
    """
    otherwise = "own" if leaf.holds_null else "error", None
    words = _words(leaf)
    key, policy = asked.of(field.key, words) or (ALL, "error")
    if not isinstance(policy, Fill):
        return otherwise if key == ALL and leaf.holds_null else (policy, None)
    value = policy.value
    if isinstance(value, Mapping):
        key, value = leaves("Fill", value, asked.columns).of(field.key, words) or (ALL, None)
    return otherwise if key == ALL and not _can_fill(leaf, value) else ("fill", value)


def _text_words(bare: pa.DataType) -> tuple[str, ...]:
    return ("binary",) if is_binary(bare) else ("string",)


def _words(leaf: Leaf) -> tuple[str, ...]:
    """The words for the type of a column in a dict by column."""
    if isinstance(leaf, CodesLeaf) and pt.is_integer(leaf.type):
        return (str(leaf.type),)
    if isinstance(leaf, (TextLeaf, CodesLeaf)):
        return _text_words(leaf.type)
    return words_of(leaf.element) if isinstance(leaf, _NUMBERS) else ()


def _can_fill(leaf: Leaf, value: Any) -> bool:
    """Whether a value that is for all columns is one for this."""
    if isinstance(leaf, CodesLeaf) and isinstance(value, int):
        return True
    if isinstance(leaf, (TextLeaf, CodesLeaf)):
        return isinstance(value, leaf.kind)
    if isinstance(value, (list, tuple)):
        return isinstance(leaf, (TensorLeaf, ListLeaf))
    if not isinstance(leaf, _NUMBERS):
        return False
    if isinstance(value, (numbers.Real, Decimal)):
        return not pt.is_temporal(leaf.element.type)
    return _number(value, leaf.element) is not None


def _with_fill(field: _Field, leaf: Leaf, value: Any) -> Leaf:
    """The leaf that replaces nulls with `value`; in lists, a number replaces null values, and `[number]` null lists."""
    if isinstance(leaf, CodesLeaf):
        return with_fill(leaf, value)
    if isinstance(leaf, TextLeaf):
        if not isinstance(value, leaf.kind):
            raise _unfit(field.key, value, leaf.kind.__name__)
        return replace(leaf, fill=value)
    if isinstance(leaf, (TensorLeaf, ListLeaf)) and isinstance(value, (list, tuple)):
        return replace(leaf, fill=_fill_row(field.key, value, leaf))
    if isinstance(leaf, _NUMBERS):
        blank = _fill_value(field.key, value, leaf.element)
        leaf = replace(leaf, element=replace(leaf.element, blank=blank))
        return replace(leaf, fill=np.array([blank]), fills_values=True) if isinstance(leaf, ListLeaf) else leaf
    raise OptionError(
        f"Fill({shown(value)}) for column {field.key!r} of type {field.type}: its rows are Python objects, whose nulls "
        "stay None: leave it out."
    )


def _unfit(key: str, value: Any, expected: str) -> OptionError:
    return OptionError(f"Fill({shown(value)}) for column {key!r}: expected {expected}.")


def _fill_row(key: str, value: Any, leaf: TensorLeaf | ListLeaf) -> np.ndarray[Any, Any]:
    """A list of numbers (a tensor: nested lists of its shape) as an array of the output's dtype."""
    given = np.empty((), object)
    given[()] = value
    shape = (len(value),) if isinstance(leaf, ListLeaf) else leaf.shape
    with contextlib.suppress(ValueError):  # nested lists of other lengths
        given = np.array(value, object)
    if given.shape != shape:
        raise _unfit(key, value, f"a number, or numbers of shape {list(shape)}")
    flat = [_fill_value(key, number, leaf.element) for number in given.reshape(-1).tolist()]
    return np.array(flat, leaf.element.dtype).reshape(shape)


def _fill_value(key: str, value: Any, element: Element) -> Any:
    """`value`, one of the column's own type, as a scalar of the output's dtype.

    A whole number for a date or time is in the column's unit.
    """
    dtype = element.dtype
    number = _number(value, element)
    if number is None or not fits(number, dtype):
        raise _unfit(key, value, f"a value that fits {dtype}")
    return dtype.type(int(number) if dtype.kind in "iu" else number)


def _scaled(value: Any, scale: int) -> int | None:
    """The integer that stands for a value of a decimal column; None if it has more digits after the point."""
    if not isinstance(value, (int, float, Decimal)) or not math.isfinite(value):
        return None
    # A float is the decimal that it is written as: 0.1, not the binary number next to it.
    digits = Decimal(repr(value) if isinstance(value, float) else value).scaleb(scale)
    return int(digits) if digits == digits.to_integral_value() else None


def fits(number: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a number is a value of this dtype."""
    if dtype.kind == "f":
        return bool(abs(number) <= np.finfo(dtype).max.item() or abs(number) == np.inf or number != number)
    if dtype.kind == "b":
        return number in (0, 1)
    return bool(number == number // 1 and np.iinfo(dtype).min <= number <= np.iinfo(dtype).max)


def _number(value: Any, element: Element) -> Any:
    """`value` as the output has it, a Python number; None if the column cannot have it."""
    if isinstance(value, np.generic):
        value = value.item()
    if element.read == "scaled_decimal":
        return _scaled(value, element.type.scale)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, numbers.Real):
        return value
    if not pt.is_temporal(element.type):
        return None
    try:
        return pa.scalar(value, element.type).value
    except (TypeError, ValueError, OverflowError):  # pa.ArrowInvalid is a ValueError, ArrowTypeError a TypeError
        return None


# Checks `jagged=`: columns of lists that a batch holds one after another, as TorchRec's KeyedJaggedTensor does.

Jagged = Mapping[str, tuple[str, ...]]  # target key -> source keys


def checked_jagged(jagged: Mapping[str, Sequence[str]], plans: Sequence[ColumnPlan], casts: Any = None) -> Jagged:
    """The targets with their sources.

    Args:
        jagged: as given.
        plans: of all columns.
        casts: `dtypes=`, as given.

    Raises:
        OptionError: a source is not a column of lists, has another dtype or meaning than the others, or another target
            as well.
    """
    lists = {plan.key: plan.leaf for plan in plans if isinstance(plan.leaf, ListLeaf) and plan.nulls != "mask"}
    taken: set[str] = set()
    for target, sources in jagged.items():
        if not sources:
            raise OptionError(f"jagged={{{target!r}: []}}: expected a list of at least one column.")
        for source in sources:
            if source not in lists:
                there = f"which are {list(lists)}" if lists else "but none is read (see columns=)"
                raise OptionError(
                    f"jagged={{{target!r}: ...}} names {source!r}: expected columns of lists of varying length, of "
                    f"numbers, without a mask, {there}."
                )
            if source in taken:
                raise OptionError(f"jagged={{{target!r}: ...}} names {source!r} a second time.")
            taken.add(source)
        dtypes = {source: str(lists[source].element.dtype) for source in sources}
        if len(set(dtypes.values())) != 1:
            raise OptionError(
                f"jagged={{{target!r}: ...}}: expected columns of one dtype, got {dtypes}: make them equal with "
                "dtypes=."
            )
        texts = unlike({plan.key: plan.meaning for plan in plans if plan.key in sources})
        if texts:
            raise OptionError(
                f"jagged={{{target!r}: ...}}: the numbers of its columns stand for different things: {texts}. Make "
                "them alike with schema= or in transform.",
                remedies=[use("takes them as plain numbers", dtypes=with_cast(casts, **dtypes))],
            )
    return {target: tuple(sources) for target, sources in jagged.items()}


def without_null_lists(plans: Sequence[ColumnPlan], jagged: Jagged) -> tuple[ColumnPlan, ...]:
    """The plans, in which a null list of a source is an empty one, unless its row is left out."""
    sources = {source for keys in jagged.values() for source in keys}
    return tuple(
        replace(plan, leaf=replace(plan.leaf, null_is_empty=plan.nulls != "drop"))
        if plan.key in sources and isinstance(plan.leaf, ListLeaf)
        else plan
        for plan in plans
    )
