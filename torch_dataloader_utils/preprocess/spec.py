"""What a spec asks for: its entries, and the outputs that these are over the columns of a schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError
from torch_dataloader_utils.options.by_column import ALL, TYPES, Leaves
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.preprocess.kinds import ColumnKind
from torch_dataloader_utils.preprocess.target import TargetEncode, class_names
from torch_dataloader_utils.preprocess.transforms import (
    ColumnTransform,
    Cross,
    DateParts,
    Drop,
    IdTransform,
    Impute,
    Keep,
)
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import plain

Chain: TypeAlias = tuple[ColumnTransform, ...]
Key: TypeAlias = str | tuple[str, ...]
Entries: TypeAlias = Mapping[
    Key, Mapping[str | None, Chain]
]  # chains by output; None: the output is called as its column

_OF_TIMES = ("date", "timestamp", "zoned")
_OF_IDS = ("number", "text", "bytes", "date", "timestamp", "zoned")


@dataclass(frozen=True)
class OutputSpec:
    """One output of a spec.

    Attributes:
        name: of the output.
        columns: that it is made of: one, or those of a `Cross`.
        chain: what is done to their values.
    """

    name: str
    columns: tuple[str, ...]
    chain: Chain

    @property
    def where(self) -> str:
        """The output and its columns, for errors."""
        columns = ", ".join(map(repr, self.columns))
        return f"output {self.name!r} of column{'s' if len(self.columns) > 1 else ''} {columns}"

    @property
    def numeric(self) -> bool:
        """Whether its values are computed with as float64."""
        return any(link.numeric for link in self.chain)

    @property
    def target(self) -> TargetEncode | None:
        """What encodes a target, if something does."""
        last = self.chain[-1]
        return last if isinstance(last, TargetEncode) else None

    @property
    def by(self) -> tuple[str, ...]:
        """The columns whose values decide a row's fold."""
        return () if self.target is None else tuple(self.target.by or ())

    @property
    def fold_columns(self) -> tuple[str, ...]:
        """The same, or `PLACE` without any; nothing, if there are no folds."""
        return self.by or (() if self.target is None else (PLACE,))

    @property
    def fitted_columns(self) -> tuple[str, ...]:
        """The columns that it is fitted on."""
        return self.columns if self.target is None else (*self.columns, self.target.target, *self.fold_columns)


def entries_of(spec: Any) -> Entries:
    """The entries of a spec.

    Raises:
        OptionError: an entry is no transform, chain of transforms, or dict of these by output.
    """
    if not isinstance(spec, Mapping) or not spec:
        raise OptionError(f"Preprocess({shown(spec)}): expected a dict of column -> transform or list of transforms.")
    found: dict[Key, Mapping[str | None, Chain]] = {}
    for key, given in spec.items():
        columns = tuple(key) if isinstance(key, (tuple, list)) else key
        if not (isinstance(columns, str) and columns) and not _is_names(columns):
            raise OptionError(
                f"Preprocess: {shown(key)}: expected the name of a column, or a tuple of names for Cross."
            )
        made = _entry(f"Preprocess: {shown(key)}", given)
        crosses = [link for chain in made.values() for link in chain if isinstance(link, Cross)]
        if isinstance(columns, str) and len(crosses) == 1 and crosses[0].columns is not None and len(made) == 1:
            name, columns = columns, tuple(crosses[0].columns)
            made = {name: (*(link for link in next(iter(made.values()))[:-1]), crosses[0].replace(columns=None))}
        if any(cross.columns is not None for cross in crosses) and not isinstance(key, str):
            raise OptionError(f"Preprocess: {shown(key)}: the key names the columns of Cross: leave columns= out.")
        if isinstance(columns, tuple) and (len(columns) < 2 or any(len(c) > 1 for c in made.values()) or not crosses):
            raise OptionError(f"Preprocess: {shown(key)}: several columns take Cross(Hash(n)) or Cross(Categorize()).")
        if isinstance(columns, str) and crosses:
            raise OptionError(
                f"Preprocess: {shown(key)}: Cross takes several columns: give a tuple of names as the key."
            )
        if set(made) & set(found.get(columns, ())):
            raise OptionError(f"Preprocess: {shown(key)} is given twice.")
        found[columns] = {**found.get(columns, {}), **made}
    return found


def named_in(entries: Entries) -> list[str]:
    """The names in the keys of entries."""
    return [name for key in entries for name in ([key] if isinstance(key, str) else key)]


def read_in(entries: Entries) -> list[str]:
    """The names in the keys of entries, and of the columns that targets and folds are made of."""
    outputs = [OutputSpec("", (), chain) for chains in entries.values() for chain in chains.values()]
    return [*named_in(entries), *(name for each in outputs for name in each.fitted_columns if name != PLACE)]


def _is_names(columns: Any) -> bool:
    return isinstance(columns, tuple) and all(isinstance(name, str) and name for name in columns)


def _entry(where: str, given: Any) -> Mapping[str | None, Chain]:
    given = given if isinstance(given, ColumnTransform) else plain(given)
    if isinstance(given, Mapping) and not isinstance(given.get("kind"), str):  # an output may be called so
        if not given or not all(isinstance(name, str) and name for name in given):
            raise OptionError(f"{where}: {shown(given)}: expected a dict of output -> transform.")
        return {name: _chain(f"{where}: {name!r}", each) for name, each in given.items()}
    return {None: _chain(where, given)}


def _chain(where: str, given: Any) -> Chain:
    links = given if isinstance(given, (list, tuple)) else (given,)
    made: list[ColumnTransform] = []
    for link in links:
        if isinstance(link, type) and issubclass(link, ColumnTransform):
            link = link()
        elif isinstance(link, Mapping):
            link = ColumnTransform.from_dict(link)
        if not isinstance(link, ColumnTransform):
            raise OptionError(
                f"{where}: {shown(link)}: expected a transform, such as Standardize(), or a list of them."
            )
        made.append(link)
    if not made:
        raise OptionError(f"{where}: expected at least one transform; Keep() leaves a column as it is.")
    for link in made[:-1]:
        if link.ends:
            raise OptionError(f"{where}: {link!r} ends a chain: nothing can follow it.")
    if len(made) > 1 and isinstance(made[-1], (Keep, Drop, DateParts)):
        raise OptionError(f"{where}: {made[-1]!r} stands alone: nothing can come before it.")
    if sum(isinstance(link, Impute) and link.indicator for link in made) > 1:
        raise OptionError(f"{where}: one Impute of a chain can have indicator=True.")
    return tuple(made)


def outputs_of(
    entries: Entries, columns: Sequence[str], types: Mapping[str, Sequence[str]], others: str
) -> list[OutputSpec]:
    """The outputs over these columns, in the order of the spec.

    Args:
        entries: of the spec.
        columns: that there are.
        types: the words for the type of each column, and of the others that `read_in` names, most exact first.
        others: "keep" if columns that no entry names are kept.

    Raises:
        ColumnNotFoundError: columns are missing; it names all of them.
        OptionError: two outputs have one name, or a pattern or type matches no column.
    """
    given = {key: key for key in entries if isinstance(key, str)}
    leaves = Leaves(given, columns)
    of_column = {column: found[0] for column in columns if (found := leaves.of(column, types[column])) is not None}
    named = {*of_column, *(name for key in entries if isinstance(key, tuple) for name in key)}
    missing: list[str] = []
    made: list[OutputSpec] = []
    for key, chains in entries.items():
        if isinstance(key, tuple):
            missing += [name for name in key if name not in columns]
            names = ["_x_".join(key)]
            own: list[tuple[str, ...]] = [key]
        else:
            matched = [column for column in columns if of_column.get(column) == key]
            if not matched:
                missing += _unmatched(key, columns, types)
            names, own = matched, [(column,) for column in matched]
        for column, each in zip(names, own, strict=True):
            for name, chain in chains.items():
                if not isinstance(chain[0], Drop):
                    output = OutputSpec(column if name is None else name, each, chain)
                    made.append(output)
                    missing += {*output.fitted_columns} - {*types, *each, PLACE}
    if missing:
        raise ColumnNotFoundError(
            f"no columns {sorted(set(missing))}, which the Preprocess names: the columns are {list(columns)}."
        )
    if others == "keep":
        made += [OutputSpec(name, (name,), (Keep(),)) for name in columns if name not in named]
    check_names([name for output in made for name in names_of(output)])
    return made


def _unmatched(key: str, columns: Sequence[str], types: Mapping[str, Sequence[str]]) -> list[str]:
    """The column that is missing for an entry that gives nothing: none, if other entries name all that it could."""
    is_pattern = bool(set(key) & set("*?["))
    if key == ALL or any(key in types[name] or (is_pattern and fnmatchcase(name, key)) for name in columns):
        return []
    if key in TYPES or is_pattern:
        what = f"matches {key!r}" if is_pattern else f"has the type {key!r}"
        raise OptionError(f"Preprocess: no column {what}: the columns are {list(columns)}.")
    return [key]


def check_names(names: Sequence[str]) -> None:
    """Check that there are outputs, and that their names differ.

    Raises:
        OptionError: they do not.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(
            f"Preprocess: several outputs are called {twice}. Name outputs apart: "
            '{"column": {"one": ..., "other": ...}}.'
        )
    if not names:
        raise OptionError("Preprocess: the spec leaves no output.")


def names_of(output: OutputSpec, classes: Sequence[Any] = ()) -> list[str]:
    """The names of the columns that an output becomes; `classes` are those of its target, if it has some."""
    last = output.chain[-1]
    if isinstance(last, DateParts):
        ends = ("_sin", "_cos") if last.cyclic else ("",)
        own = [f"{output.name}_{part}{end}" for part in last.parts for end in ends]
    else:
        own = class_names(output.name, classes)
    indicator = any(isinstance(link, Impute) and link.indicator for link in output.chain)
    return own + ([f"{output.name}_missing"] if indicator else [])


def check_kinds(output: OutputSpec, kinds: Sequence[ColumnKind]) -> None:
    """Check that an output can be made of columns of these kinds.

    Raises:
        UnsupportedTypeError: a transform does not work on the kind of a column.
        OptionError: a value to impute is of another kind.
    """
    last, kind, of = output.chain[-1], kinds[0], output.where
    if isinstance(last, Keep) and len(output.chain) == 1:
        if last.classes and (kind.nested or kind.values not in _OF_IDS):
            raise UnsupportedTypeError(f"{of}: {last!r}: the column holds {kind.text}, not classes.")
        return
    for column, each in zip(output.columns, kinds, strict=True):
        if output.numeric and each.values != "number":
            link = next(link for link in output.chain if link.numeric)
            raise UnsupportedTypeError(
                f"{of}: {link!r} computes with numbers, but the column holds {each.text}. {_instead(each.values)}"
            )
        if isinstance(last, (IdTransform, TargetEncode)) and not output.numeric and each.values not in _OF_IDS:
            raise UnsupportedTypeError(
                f"{of}: {last!r} takes no values of column {column!r} as categories: it holds {each.text}."
            )
        if isinstance(last, TargetEncode) and each.nested:
            raise UnsupportedTypeError(f"{of}: TargetEncode takes no lists, but column {column!r} holds {each.text}.")
        if isinstance(last, Cross) and each.nested:
            raise UnsupportedTypeError(f"{of}: Cross takes no lists, but column {column!r} holds {each.text}.")
    if isinstance(last, DateParts) and (kind.values not in _OF_TIMES or kind.nested):
        raise UnsupportedTypeError(f"{of}: {last!r} takes dates and times, but the column holds {kind.text}.")
    if isinstance(last, DateParts) and last.zone is not None and kind.values != "zoned":
        raise OptionError(
            f"{of}: zone={last.zone!r} converts instants, but the column holds {kind.text}: leave zone out, and its "
            "wall clock is taken."
        )
    for link in output.chain:
        if isinstance(link, Impute) and link.value is not None:
            _check_imputed(of, link, output, kind.values)
        if isinstance(link, Impute) and link.indicator and kind.nested:
            raise UnsupportedTypeError(f"{of}: indicator=True takes no lists, but the column holds {kind.text}.")


def check_target(output: OutputSpec, kinds: Sequence[ColumnKind]) -> None:
    """Check the columns of which an output's target and folds are made, by the kinds of these.

    Raises:
        UnsupportedTypeError: a column does not hold such values.
        OptionError: the target is the column itself.
    """
    if output.target is None:
        return
    of, target = output.where, output.target.target
    if target in output.columns:
        raise OptionError(f"{of}: {output.target!r} would encode the target by itself: name another column.")
    if (kind := kinds[0]).nested or kind.values not in ("number", "text", "bytes"):
        raise UnsupportedTypeError(
            f"{of}: the target {target!r} holds {kind.text}: expected numbers, or classes as text, bytes or numbers."
        )
    for name, kind in zip(output.fold_columns, kinds[1:], strict=True):
        if kind.nested or kind.values not in (*_OF_IDS, "time"):
            raise UnsupportedTypeError(f"{of}: by={name!r} holds {kind.text}, which is not hashed.")


def _check_imputed(of: str, link: Impute, output: OutputSpec, kind: str) -> None:
    expected = {"number": (int, float, bool), "text": (str,), "bytes": (bytes,)}.get(kind)
    if expected is not None and not isinstance(link.value, expected):
        raise OptionError(f"{of}: {link!r}: the column holds {kind}.")


def without_places(outputs: Sequence[OutputSpec]) -> OptionError:
    """The error for rows without places, of which folds are to be made."""
    named = next(output for output in outputs if PLACE in output.fold_columns)
    return OptionError(
        f"output {named.name!r}: {named.target!r} decides a row's fold by its place in a file, and these rows have "
        "none. Give by=, the columns that identify a row or a group of rows, such as by=['user_id'], and fit it again."
    )


def _instead(kind: str) -> str:
    return {
        "text": "Categorize() or Hash(n) makes ids of it.",
        "bytes": "Categorize() or Hash(n) makes ids of it.",
        "date": "DateParts(...) takes its parts.",
        "timestamp": "DateParts(...) takes its parts.",
        "zoned": "DateParts(...) takes its parts.",
    }.get(kind, "Keep() leaves it as it is.")
