"""One type per column over all files: widening, declared schemas, and which types hold the values of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import Example, OptionError, SchemaMismatchError, use
from torch_dataloader_utils.printing import shown

Merge = Callable[[pa.DataType, pa.DataType], "pa.DataType | None"]


def resolve_schema(files: Iterable[tuple[str, pa.Schema]], merge: Merge) -> pa.Schema:
    """The columns of all files, in the order of first appearance, each with a type that holds every file's values.

    Ints widen to ints and floats to floats. Ints and floats widen to a float that holds the int type, else to float64;
    a whole number that it would round is then an error when it is read (`columns.conform`). Temporal units become
    finer; dictionaries become plain types if files differ, views and runs always; a null column takes the other type;
    structs gain fields. A column that a file lacks is null there. All columns are nullable.

    Args:
        files: path and schema of each.
        merge: maps two types to one that holds both, or None if there is none.

    Raises:
        SchemaMismatchError: no type holds a column's values in two files; names file, column and both types.
    """
    types: dict[str, tuple[pa.DataType, str]] = {}
    seen: set[pa.Schema] = set()
    for path, schema in files:
        schema = schema.remove_metadata()
        if schema in seen:
            continue
        seen.add(schema)
        _reject_twins(path, schema)
        for field in schema:
            kind = delivered_type(field.type)
            known, origin = types.get(field.name, (kind, path))
            merged = merge(known, kind)
            if merged is None:
                raise SchemaMismatchError(
                    f"{path}: column {field.name!r} is {field.type}, but {known} in {origin}, and no type holds both "
                    "exactly. Set schema= with the type to use, or read these files separately."
                )
            types[field.name] = (merged, origin)
    return pa.schema([pa.field(name, kind) for name, (kind, _) in types.items()])


def guessed_schema(files: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """The columns of text files, with types guessed from samples; columns without a value in the samples are strings.

    Args:
        files: path and guessed schema of each.
    """
    schema = resolve_schema(files, merge_text_types)
    return pa.schema([field.with_type(_without_nulls(field.type)) for field in schema])


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_without_nulls(field.type)) for field in kind])
    if pt.is_list(kind):
        return pa.list_(_without_nulls(kind.value_type))
    return pa.string() if pt.is_null(kind) else kind


def check_schema(declared: pa.Schema, files: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """`declared` without metadata, after checking that every file's columns can be cast to it.

    Columns that it omits are not read. A value that does not fit is an error when it is read.

    Raises:
        OptionError: `declared` is not a schema.
        SchemaMismatchError: a file's column cannot be cast; names file, column and both types.
    """
    if not isinstance(declared, pa.Schema):
        raise OptionError(f"schema={shown(declared)}: expected a pyarrow.Schema.")
    _reject_twins("schema=", declared)
    seen: set[pa.Schema] = set()
    counted: dict[str, tuple[str, pa.DataType]] = {}
    for path, schema in files:
        if schema in seen:
            continue
        seen.add(schema)
        _reject_twins(path, schema)
        for field in declared:
            place = schema.get_field_index(field.name)
            if place >= 0 and not _castable(schema.field(place).type, field.type):
                raise SchemaMismatchError(
                    f"{path}: column {field.name!r} is {schema.field(place).type}, which cannot be cast to the type "
                    f"{field.type} in schema=."
                )
            if place >= 0 and (kind := _counted(schema.field(place).type, field.type)) is not None:
                first, known = counted.setdefault(field.name, (path, kind))
                if not known.equals(kind):
                    raise _joined_times(declared, field, (first, known), (path, kind))
    return pa.schema([pa.field(field.name, delivered_type(field.type)) for field in declared])


def _joined_times(
    declared: pa.Schema, field: pa.Field, one: tuple[str, pa.DataType], other: tuple[str, pa.DataType]
) -> SchemaMismatchError:
    """The error for dates or times of two files (path and type) that are declared to be plain numbers."""
    (first, known), (path, kind) = one, other
    merged = merge_types(known, kind)
    ways = []
    if merged is not None and not pt.is_nested(field.type):
        schema = declared.set(declared.get_field_index(field.name), pa.field(field.name, merged))
        ways = [use(schema=Example(f"pa.schema([..., ({field.name!r}, {merged})])", schema))]
    return SchemaMismatchError(
        f"{path}: column {field.name!r} is {kind}, but {known} in {first}: as {field.type} in schema= their numbers "
        f"would be joined, though they stand for different times.{'' if ways else ' Read these files separately.'}",
        remedies=ways,
    )


def _counted(given: pa.DataType, declared: pa.DataType) -> pa.DataType | None:
    """The type of dates or times that are declared to be plain numbers; None for other columns."""
    given, declared = plain_type(given), plain_type(declared)
    if hasattr(given, "value_type") and hasattr(declared, "value_type"):
        return _counted(given.value_type, declared.value_type)
    return given if pt.is_temporal(given) and pt.is_integer(declared) else None


def _reject_twins(path: str, schema: pa.Schema) -> None:
    name, times = next(iter(Counter(schema.names).most_common(1)), ("", 0))
    if times > 1:
        raise SchemaMismatchError(f"{path}: more than one column is called {name!r}, but names must be unique.")


def _castable(old: pa.DataType, new: pa.DataType) -> bool:
    try:
        pa.nulls(1, old).cast(new)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def merge_types(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of `a` and of `b` exactly, or None if there is none.

    Floats and 64-bit ints merge to float64; each of these ints is checked when it is read.
    """
    if a.equals(b) or pt.is_null(b):
        return a
    if pt.is_null(a):
        return b
    a, b = plain_type(a), plain_type(b)
    try:
        fields = [pa.schema([pa.field("", a)]), pa.schema([pa.field("", b)])]
        merged = pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    # pyarrow also merges types at a loss of values, such as decimal with double or uint64 with int64.
    return merged if all(holds(merged, kind, checked=True) and _castable(kind, merged) for kind in (a, b)) else None


def merge_text_types(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """A type as which the text of all values of `a` and of `b` can be parsed: float64 for numbers, at worst string.

    The types are guesses from samples of files. Nothing is lost: values are parsed from the text, never converted.
    """
    merged = merge_types(a, b)
    if merged is not None:
        return merged
    if pt.is_struct(a) and pt.is_struct(b):
        fields = {field.name: field.type for field in a}
        for field in b:
            fields[field.name] = merge_text_types(fields.get(field.name, field.type), field.type)
        return pa.struct(list(fields.items()))
    if pt.is_list(a) and pt.is_list(b):
        merged = merge_text_types(a.value_type, b.value_type)
        texts = all(_is_guessed_of_text(kind.value_type) for kind in (a, b))
        return pa.string() if pt.is_string(merged) and not texts else pa.list_(merged)
    if pt.is_integer(a) and pt.is_integer(b):
        return pa.uint64()  # one is, for numbers above int64; a negative one is then an error when it is read
    if all(pt.is_integer(kind) or pt.is_floating(kind) for kind in (a, b)):
        return pa.float64()
    if all(pt.is_date(kind) or (pt.is_timestamp(kind) and kind.tz is None) for kind in (a, b)):
        return b if pt.is_timestamp(b) else a
    return pa.string()


def _is_guessed_of_text(kind: pa.DataType) -> bool:
    """Whether a type is guessed for strings of JSON."""
    return bool(pt.is_string(kind) or pt.is_timestamp(kind) or pt.is_null(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether values of the type are strings."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def plain_type(kind: pa.DataType, *, extensions: bool = False) -> pa.DataType:
    """The type of the same values without a dictionary; with `extensions`, that in which any extension stores them."""
    if extensions and isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type, extensions=True)
    return plain_type(kind.value_type, extensions=extensions) if pt.is_dictionary(kind) else kind


def delivered_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column is delivered with: without views and runs, which Arrow cannot filter."""
    return without_views(kind.value_type if pt.is_run_end_encoded(kind) else kind)


def without_views(kind: pa.DataType) -> pa.DataType:
    """The type with views replaced by large strings and binaries: Arrow cannot filter, take or compare views."""
    if pt.is_string_view(kind):
        return pa.large_string()
    if pt.is_binary_view(kind):
        return pa.large_binary()
    if pt.is_struct(kind):
        return pa.struct([field.with_type(without_views(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(without_views(kind.key_type), without_views(kind.item_type), keys_sorted=kind.keys_sorted)
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(without_views(kind.value_type)))
    return kind


def without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """The type with dictionaries replaced by their values, at any depth."""
    if pt.is_dictionary(kind):
        return kind.value_type
    if pt.is_struct(kind):
        return pa.struct([_decoded(field) for field in kind])
    if pt.is_map(kind):
        return pa.map_(without_dictionaries(kind.key_type), _decoded(kind.item_field), keys_sorted=kind.keys_sorted)
    if pt.is_list(kind):
        return pa.list_(_decoded(kind.value_field))
    if pt.is_large_list(kind):
        return pa.large_list(_decoded(kind.value_field))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_decoded(kind.value_field), kind.list_size)
    return kind


def _decoded(field: pa.Field) -> pa.Field:
    return field.with_type(without_dictionaries(field.type))


_LISTS: Mapping[str, Callable[[pa.Field], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}


def kept_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without what pickling loses: the item field of fixed-size lists, and whether map keys are sorted.

    This gives a schema and its copy in another process the same text. The item field is named as in Parquet files.
    """
    return pa.schema([_kept(field) for field in schema])


def _kept(field: pa.Field) -> pa.Field:
    return field.with_type(_kept_type(field.type))


def _kept_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _kept_type(kind.value_type)), kind.list_size)
    if pt.is_map(kind):
        return pa.map_(_kept(kind.key_field), _kept(kind.item_field))
    if pt.is_struct(kind):
        return pa.struct([_kept(field) for field in kind])
    if pt.is_union(kind):
        fields = [_kept(kind.field(number)) for number in range(kind.num_fields)]
        return pa.union(fields, kind.mode, kind.type_codes)
    if pt.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _kept_type(kind.value_type), kind.ordered)
    made = _LISTS.get(str(kind).partition("<")[0])
    return kind if made is None else made(_kept(kind.value_field))


_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    pt.is_floating,
    pt.is_date,
    pt.is_time,
    pt.is_duration,
    pt.is_decimal,
    is_text,
    lambda kind: bool(pt.is_binary(kind) or pt.is_large_binary(kind)),
)
_FLOAT_DIGITS = {16: 11, 32: 24, 64: 53}


def holds(wide: pa.DataType, narrow: pa.DataType, checked: bool = False) -> bool:
    """Whether `wide`, to which pyarrow would merge `narrow`, holds every value of `narrow` exactly.

    Args:
        wide: the merged type.
        narrow: one of the types that were merged.
        checked: whether any float counts as holding ints, because each value is checked when it is read; and decimals
            with enough digits.
    """
    if wide.equals(narrow) or pt.is_null(narrow):
        return True
    if pt.is_integer(narrow):
        digits = narrow.bit_width - pt.is_signed_integer(narrow)
        if pt.is_floating(wide):
            return checked or bool(digits <= _FLOAT_DIGITS[wide.bit_width])
        if pt.is_decimal(wide):  # whose statistics would be compared with those of ints: only to read
            return checked and bool(wide.precision - wide.scale >= len(str(2**digits)))
        signs = pt.is_signed_integer(wide) or pt.is_unsigned_integer(narrow)
        return bool(pt.is_integer(wide) and signs and digits <= wide.bit_width - pt.is_signed_integer(wide))
    if pt.is_timestamp(narrow) and pt.is_timestamp(wide):
        return bool(wide.tz == narrow.tz)
    if pt.is_nested(narrow) and pt.is_nested(wide):
        return _nested_holds(wide, narrow, checked)
    return any(family(wide) and family(narrow) for family in _FAMILIES)


def _nested_holds(wide: pa.DataType, narrow: pa.DataType, checked: bool) -> bool:
    if pt.is_struct(narrow) and pt.is_struct(wide):
        names = {field.name for field in wide}
        return all(field.name in names and holds(wide.field(field.name).type, field.type, checked) for field in narrow)
    if pt.is_map(narrow) or pt.is_map(wide):
        both = pt.is_map(narrow) and pt.is_map(wide)
        keys = both and holds(wide.key_type, narrow.key_type, checked)
        return keys and holds(wide.item_type, narrow.item_type, checked)
    if pt.is_fixed_size_list(narrow):
        return False  # wide has another size, or is a list: rows would lose their shape
    if hasattr(narrow, "value_type") and hasattr(wide, "value_type"):
        return holds(wide.value_type, narrow.value_type, checked)
    return False
