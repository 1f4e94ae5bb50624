"""A decoded block to converted columns: decided once from the schema, then without work per row where memory allows.

`build_converter` is called when the loader is created, `Converter.convert` once per block after it is decoded; batches
are slices of what it returns. Blocks of `output_format="arrow"` and `"dict"` are not converted, only made `compact`:
the options are checked all the same but have no effect, except that `nulls="drop"` still drops rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.buffers import Origin, overlapping
from torch_dataloader_utils.convert.codes import CodesLeaf
from torch_dataloader_utils.convert.columns import Array, Column, Dense, Memory
from torch_dataloader_utils.convert.elements import Element
from torch_dataloader_utils.convert.leaves import ListLeaf, ObjectsLeaf, ScalarLeaf, TensorLeaf, TextLeaf
from torch_dataloader_utils.convert.meaning import Meaning
from torch_dataloader_utils.convert.plan import ColumnPlan, Jagged, checked_jagged, column_plans, without_null_lists
from torch_dataloader_utils.convert.stacks import check_stack, stacked, stacked_keys
from torch_dataloader_utils.convert.utf8 import check_utf8
from torch_dataloader_utils.errors import ColumnNotFoundError, NullValueError, OptionError, SchemaMismatchError
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.options import ConvertOptions
from torch_dataloader_utils.options.lists import length_multiple
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.schemas.columns import column_at, find_path


class StraightForm(NamedTuple):
    """What the stored values of a column become.

    Attributes:
        dtype: of the output.
        blank: what nulls become; None where a null is an error.
        divisor: of values that are stored as int64; 0 for others, which are the output.
    """

    dtype: np.dtype[Any]
    blank: Any
    divisor: float


@dataclass(frozen=True)
class Converter:
    """How every block of one schema becomes columns; picklable.

    Attributes:
        plans: one per leaf of the schema.
        stacks: target key -> source keys, each [n] of the same dtype, which become [n, k].
        keys: the output keys, in order.
        jagged: target key -> source keys, columns of lists that a batch holds as one entry.
        nulls: `nulls=`, as given.
        multiple: of which the length of each padded list is one.
        converts: False where blocks stay Arrow tables (`output_format` "arrow" and "dict").
    """

    plans: tuple[ColumnPlan, ...]
    stacks: Mapping[str, tuple[str, ...]]
    keys: tuple[str, ...]
    nulls: Any = "error"
    multiple: int = 1
    converts: bool = True
    jagged: Jagged = field(default_factory=dict)

    def part(self, names: Sequence[str]) -> Converter:
        """The converter of some of the columns, by their names in the table; it does not stack them."""
        wanted = frozenset(names)
        plans = tuple(plan for plan in self.plans if plan.column in wanted)
        return replace(self, plans=plans, stacks={}, keys=tuple(_keys_of(plans)), jagged={})

    # What all readers of a dataset need of thousands of columns is found once: each pass has new readers.

    @cached_property
    def dense(self) -> dict[str, str]:
        """The columns whose only output is `Dense`: name -> key."""
        names = Counter(plan.column for plan in self.plans)
        return {
            plan.column: plan.key
            for plan in self.plans
            if names[plan.column] == 1 and plan.nulls != "mask" and isinstance(plan.leaf, (ScalarLeaf, TensorLeaf))
        }

    @cached_property
    def stored(self) -> dict[str, np.dtype[Any]]:
        """The columns whose output is their buffer, unless they have nulls: name -> dtype."""
        return {name: element.dtype for name, element in self._scalars() if element.as_stored}

    @cached_property
    def straight(self) -> dict[str, StraightForm]:
        """The columns whose stored values are those of the output, but for nulls, or its multiples, by name."""
        blanks = {
            plan.column: None if plan.nulls in ("error", "drop") else plan.leaf.element.blank
            for plan in self.plans
            if isinstance(plan.leaf, ScalarLeaf)
        }
        return {
            name: StraightForm(element.dtype, blanks[name], element.divisor)
            for name, element in self._scalars()
            if name in self.dense and (element.as_stored or element.as_bits or element.divisor)
        }

    @cached_property
    def ragged(self) -> dict[str, TextLeaf | ListLeaf | TensorLeaf]:
        """The columns of bytes or lists whose stored values are those of the output, but for nulls, by name."""
        names = Counter(plan.column for plan in self.plans)
        return {
            plan.column: plan.leaf
            for plan in self.plans
            if names[plan.column] == 1 and not plan.path and plan.nulls != "mask"
            if isinstance(plan.leaf, (TextLeaf, ListLeaf, TensorLeaf)) and plan.leaf.as_stored
        }

    def _scalars(self) -> Iterator[tuple[str, Element]]:
        """The columns of one number for each row, and how it is converted."""
        for plan in self.plans:
            if not plan.path and isinstance(plan.leaf, ScalarLeaf):
                yield plan.column, plan.leaf.element

    @property
    def drop_columns(self) -> tuple[str, ...]:
        """The table's columns whose null rows are dropped (`nulls="drop"`), at the same time as filtered rows."""
        return tuple(dict.fromkeys(plan.column for plan in self.plans if plan.nulls == "drop"))

    @property
    def null_error_columns(self) -> frozenset[str]:
        """The keys where a null is an error that a footer's null count can prove (for lists it cannot)."""
        return frozenset(
            plan.key
            for plan in self.plans
            if self.converts and plan.nulls == "error" and isinstance(plan.leaf, (ScalarLeaf, TextLeaf, CodesLeaf))
        )

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """The keys of the plans whose columns each key of a batch holds; none for masks."""
        plans = {plan.key for plan in self.plans}
        joined = {**self.stacks, **self.jagged}
        keys = stacked_keys(self.keys, self.jagged)
        return {key: joined.get(key, (key,) if key in plans else ()) for key in keys}

    @property
    def elements(self) -> Mapping[str, Element]:
        """How numbers are converted, by the key of their plan."""
        return {plan.key: plan.element for plan in self.plans if plan.element is not None}

    def meant(self, meanings: Mapping[str, Meaning]) -> Converter:
        """The converter whose numbers stand for this, by the key of their plan (see `meaning.common`)."""
        plans = (plan.meant(meanings[plan.key]) if plan.key in meanings else plan for plan in self.plans)
        return replace(self, plans=tuple(plans))

    @property
    def codes(self) -> Mapping[str, CodesLeaf]:
        """The leaves of columns of codes, by key."""
        if not self.converts:
            return {}
        return {plan.key: plan.leaf for plan in self.plans if isinstance(plan.leaf, CodesLeaf)}

    @property
    def unlearned(self) -> tuple[ColumnPlan, ...]:
        """The plans of columns of codes whose vocabulary is not known yet."""
        missing = [key for key, leaf in self.codes.items() if leaf.vocabulary is None]
        return tuple(plan for plan in self.plans if plan.key in missing)

    def learned(self, values: Mapping[str, pa.Array]) -> Converter:
        """The converter with these vocabularies for columns of codes (by key; all distinct values)."""
        return self.with_codes({key: leaf.learned(values[key]) for key, leaf in self.codes.items() if key in values})

    def with_codes(self, leaves: Mapping[str, CodesLeaf]) -> Converter:
        """The converter with these leaves of columns of codes, by key."""
        return replace(self, plans=tuple(replace(p, leaf=leaves.get(p.key, p.leaf)) for p in self.plans))

    @property
    def extending(self) -> Mapping[str, CodesLeaf]:
        """The leaves of columns of codes whose vocabulary may get others behind its values, by key."""
        return {key: leaf for key, leaf in self.codes.items() if leaf.extends}

    def vocabulary(self, key: str) -> list[Any]:
        """The values of a column of codes, in the order of their codes.

        Raises:
            ColumnNotFoundError: the column has no codes.
        """
        leaf = self.codes.get(key) if isinstance(key, str) else None
        if leaf is None or leaf.vocabulary is None:
            raise ColumnNotFoundError(f"column {shown(key)} has no codes: expected one of {list(self.codes)}.")
        values: list[Any] = leaf.vocabulary.to_pylist()
        return values

    @property
    def vocabularies(self) -> dict[str, list[Any]]:
        """The values of each column of codes, in the order of their codes, by key."""
        return {key: leaf.vocabulary.to_pylist() for key, leaf in self.codes.items() if leaf.vocabulary is not None}

    @property
    def objects(self) -> dict[str, pa.DataType]:
        """The columns whose rows become Python objects, with their types, by key."""
        leaves = {plan.key: plan.leaf for plan in self.plans if self.converts}
        return {key: leaf.type for key, leaf in leaves.items() if isinstance(leaf, ObjectsLeaf)}

    def encoded(self, types: Mapping[str, pa.DataType]) -> Converter:
        """The converter of tables that hold columns of codes as dictionaries (name -> dictionary type)."""
        return replace(self, plans=tuple(_encoded(plan, types) for plan in self.plans))

    @property
    def of_transform(self) -> Converter:
        """The converter of what a transform returns."""
        return replace(self, plans=tuple(replace(plan, transformed=True) for plan in self.plans))

    def null_error(self, key: str, where: str) -> NullValueError:
        """The error for a null in column `key`, somewhere in `where`."""
        return next(plan for plan in self.plans if plan.key == key).null_error(where, self.nulls)

    def null_mask(self, table: pa.Table) -> pa.Array | None:
        """Mask of the rows that `nulls="drop"` keeps before `transform`, Arrow bools [n], or None for all."""
        valid = (_valid(plan, table) for plan in self.plans if plan.nulls == "drop")
        masks = [mask for mask in valid if mask is not None]
        return as_arrow(np.logical_and.reduce(masks)) if masks else None

    def convert(self, table: pa.Table, owned: bool | frozenset[int], where: str) -> dict[str, Column]:
        """The rows of `table` as columns, by key in the order of `keys`.

        Args:
            table: has the schema that the converter was built for.
            owned: True if all buffers of `table` are ours alone, so that batches may be views of them (and nulls be
                overwritten); False if none are; else the addresses of those that are.
            where: names the rows in errors, such as "file x.parquet, row groups 3-4".

        Raises:
            NullValueError: a null in a column whose dtype cannot hold nulls, and whose policy is not to mask or fill
                them.
            SchemaMismatchError: a column is of another type.
            OptionError: a value does not fit the dtype that `dtypes=` asks for.
        """
        places = {name: place for place, name in enumerate(table.column_names)}
        origin = Origin(owned, overlapping(table) if owned else frozenset(), where)
        columns: dict[str, Column] = {}
        for plan in self.plans:
            given = table.column(places[plan.column])
            _check_type(plan, given.type, where)
            if isinstance(plan.leaf, ObjectsLeaf) or (isinstance(plan.leaf, TextLeaf) and not plan.leaf.as_bytes):
                check_utf8(plan.column, given, where)
            origin.key = plan.key
            column, valid = plan.leaf.convert(plan.chunks_of(given), origin)
            if valid is not None and (plan.nulls in ("error", "drop") or (plan.unfilled and not valid.all())):
                row = int(np.argmin(valid))
                raise self.null_error(plan.key, f"{where}, at row {row} of the {len(valid)} rows read")
            columns[plan.key] = column
            if plan.nulls == "mask":
                columns[plan.mask_key] = Dense(np.ones(len(column), np.bool_) if valid is None else valid)
        return self.stacked(columns)

    def stacked(self, columns: Mapping[str, Column], memory: Memory | None = None) -> dict[str, Column]:
        """The output by key, in the order of `keys`, from the output of all columns before they are stacked.

        Args:
            columns: by key.
            memory: makes the arrays of stacks; None: numpy does.
        """
        # Added last, because a target may have the name of one of its sources.
        stacks = {target: stacked([columns[key] for key in keys], memory) for target, keys in self.stacks.items()}
        return {key: stacks[key] if key in stacks else columns[key] for key in self.keys}

    def report(self) -> dict[str, dict[str, Any]]:
        """Key -> Arrow type, kind, dtype, shape, null policy and, if any, unit, timezone and scale."""
        if not self.converts:
            return {plan.column: {"arrow": str(plan.column_type)} for plan in self.plans}
        reports: dict[str, dict[str, Any]] = {}
        for plan in self.plans:
            reports[plan.key] = plan.report()
            if plan.nulls == "mask":
                reports[plan.mask_key] = {"kind": "dense", "dtype": "bool", "shape": "[B]"}
        reports |= {target: _stack_report([reports[key] for key in keys], keys) for target, keys in self.stacks.items()}
        reports |= {
            target: {"kind": "jagged", "dtype": reports[keys[0]]["dtype"], "shape": "[*]", "jagged": list(keys)}
            for target, keys in self.jagged.items()
        }
        return {key: reports[key] for key in stacked_keys(self.keys, self.jagged)}


def _stack_report(reports: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """The report of a stack; units only if all its columns have the same."""
    alike = {
        word: value
        for word, value in reports[0].items()
        if word not in ("unit", "timezone", "scale") or all(report.get(word) == value for report in reports)
    }
    return {**alike, "shape": f"[B, {len(keys)}]", "stacked": list(keys)}


def _encoded(plan: ColumnPlan, types: Mapping[str, pa.DataType]) -> ColumnPlan:
    if plan.column not in types or not isinstance(plan.leaf, CodesLeaf):
        return plan
    leaf = replace(plan.leaf, steps=("dictionary", *plan.leaf.steps))
    return replace(plan, column_type=types[plan.column], leaf=leaf)


def build_converter(schema: pa.Schema, options: ConvertOptions, output_format: str) -> Converter:
    """The converter for blocks of `schema`.

    Args:
        schema: of the blocks.
        options: how columns are converted.
        output_format: of batches.

    Raises:
        OptionError: an option names an unknown column or does not fit its column; keys clash.
        UnsupportedTypeError: a type does not have the requested tensor form.
    """
    converts = output_format in ("torch", "numpy")
    if not converts:  # any type can stay as it is
        options = replace(options, decimals="float64")
    plans = column_plans(schema, options)
    jagged = checked_jagged(options.jagged or {}, plans, options.dtypes)
    plans = without_null_lists(plans, jagged)
    given = (options.stack or {}).items()
    stacks = {target: check_stack(target, sources, plans, options.dtypes) for target, sources in given}
    if not converts:
        _check_unique(schema.names)
        return Converter(plans, {}, tuple(schema.names), options.nulls, converts=False)
    keys = _keys_of(plans)
    _check_unique(keys)
    keys = stacked_keys(keys, stacks)
    _check_unique(keys)
    _check_unique(stacked_keys(keys, jagged))
    return Converter(plans, stacks, tuple(keys), options.nulls, length_multiple(options.lists), jagged=jagged)


def compact(table: pa.Table) -> pa.RecordBatch:
    """The rows as one record batch whose buffers hold only them; copies only columns that are chunked or sliced."""
    arrays = [_compact_column(column) for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def _compact_column(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        chunk = column.chunk(0)
        if chunk.get_total_buffer_size() <= chunk.nbytes + 1024:  # bytes of padding, not worth a copy
            return chunk
    chunks = column.chunks or [pa.array([], column.type)]
    return pa.concat_arrays(chunks)


def _keys_of(plans: Sequence[ColumnPlan]) -> list[str]:
    """The output keys of columns, in order, before any are stacked."""
    return [key for plan in plans for key in ([plan.key, plan.mask_key] if plan.nulls == "mask" else [plan.key])]


def _valid(plan: ColumnPlan, table: pa.Table) -> Array | None:
    """Which of the plan's rows are not null before `transform`, which may still change the column."""
    path = find_path(table.schema, plan.column)
    if path is None:
        return None
    column = column_at(table, path)
    if column.type.equals(plan.column_type):
        return plan.leaf.valid(plan.chunks_of(column))
    valid: Array = column.is_valid().to_numpy()
    return None if valid.all() else valid


def _check_type(plan: ColumnPlan, type_: pa.DataType, where: str) -> None:
    """Check a column's type: buffers are read as the schema's type, so another one would give garbage."""
    if not type_.equals(plan.column_type):
        raise SchemaMismatchError(
            f"column {plan.column!r} of {where} is of type {type_}, but the schema says {plan.column_type}."
        )


def _check_unique(keys: Sequence[str]) -> None:
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise OptionError(
            f"the output key {twice[0]!r} would occur twice (columns, fields of structs as 'parent.child', masks as "
            "'<column>_valid' and stack targets share one set of names): leave one out with columns=, or rename it in "
            "transform."
        )
