"""Checks of option values: each check returns the value to store, or raises an OptionError."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from math import inf
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import DataLoaderUtilsError, OptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.units import parse_bytes

Check: TypeAlias = Callable[[str, Any], Any]  # (an option's name, its value) -> the value to store


_MOST_NUMBER = 2**63 - 1
_MOST_NAMES = 1_000_000  # an iterator may not end


def option(
    default: Any,
    check: Check | None = None,
    *,
    doc: str = "",
    given: str | None = None,
    repr: bool = True,
    keyword: bool = True,
) -> Any:
    """A dataclass field for an option: its default, its check, and the line that documents it.

    `scripts/write_signatures.py` writes signatures and docstrings from it.

    Args:
        default: what it is if it is not given.
        check: returns what is stored of what was given.
        doc: the line.
        given: the type of what may be given, as text; None: that of what is stored.
        repr: False leaves it out of reprs.
        keyword: False for what only the value of another option says.
    """
    return field(default=default, metadata={"check": check, "doc": doc, "given": given, "keyword": keyword}, repr=repr)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Options that are checked, each on its own, when they are created."""

    def __post_init__(self) -> None:
        for item in fields(self):
            check = item.metadata.get("check")
            if check is not None:
                value = checked(item.name, check, getattr(self, item.name), item.metadata["doc"])
                object.__setattr__(self, item.name, value)


def checked(name: str, check: Check, value: Any, doc: str) -> Any:
    """The value, checked; one that raises when it is looked at (compared, measured, shown) is refused.

    Args:
        name: of what is checked.
        check: the check.
        value: what was given.
        doc: what is expected, in words.
    """
    try:
        return check(name, value)
    except DataLoaderUtilsError:
        raise
    except Exception as error:
        raise OptionError(
            f"{name}: a value of type {type(value).__name__} cannot be used here: checking it raised "
            f"{type(error).__name__}. Expected: {doc}."
        ) from error


def values(expected: str, holds: Callable[[Any], bool], *, secret: bool = False) -> Check:
    """A check for values for which `holds` is true; errors do not show a secret value."""

    def check(name: str, value: Any) -> Any:
        if not holds(value):
            raise OptionError(f"{name}{'' if secret else f'={shown(value)}'}: expected {expected}.")
        return value

    return check


@dataclass(frozen=True)
class Maybe:
    """None, or what `check` accepts."""

    check: Check

    def __call__(self, name: str, value: Any) -> Any:
        """The value, checked."""
        return None if value is None else self.check(name, value)


def maybe(check: Check) -> Check:
    """None, or what `check` accepts."""
    return Maybe(check)


@dataclass(frozen=True)
class OneOf:
    """One of these values; signatures show them as a `Literal`."""

    allowed: tuple[object, ...]

    def __call__(self, name: str, value: Any) -> Any:
        """The value, checked."""
        if value not in self.allowed:
            raise OptionError(f"{name}={value!r}: expected one of {', '.join(map(repr, self.allowed))}.")
        return value


def one_of(*allowed: object) -> Check:
    """One of these values."""
    return OneOf(allowed)


@dataclass(frozen=True)
class WordOrWords:
    """One of these words, or a dict of column -> word."""

    allowed: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> Any:
        """The value, checked."""
        for word in value.values() if isinstance(value, Mapping) else [value]:
            OneOf(self.allowed)(name, word)
        return value


def word_or_words(*allowed: str) -> Check:
    """One of these words, or a dict of column -> word."""
    return WordOrWords(allowed)


def whole(least: int | None = None, most: int = _MOST_NUMBER) -> Check:
    """A whole number of at least `least` and at most `most`; a bool is refused."""
    if least is None:
        return values("a whole number", lambda value: _is_number(value, int))
    limit = "" if most == _MOST_NUMBER else f" and at most {most}"
    return values(
        f"a whole number of at least {least}{limit}", lambda value: _is_number(value, int) and least <= value <= most
    )


def mapping(of: str) -> Check:
    """None, or a dict."""
    return maybe(values(f"a dict of {of}", _is_named))


def credentials(of: str) -> Check:
    """None, or a dict that errors do not show."""
    return maybe(values(f"a dict, {of}", _is_named, secret=True))


flag = values("True or False", lambda value: isinstance(value, bool))
function = values("a callable", callable)
word = values("a name", lambda value: isinstance(value, str) and value != "")
_path = values("a path", lambda value: isinstance(value, (str, os.PathLike)) and bool(os.fspath(value)))


def path(name: str, value: Any) -> str:
    """A path, as text."""
    return os.fspath(_path(name, value))


seconds = values("seconds (0 for none)", lambda value: _is_number(value, (int, float)) and float(value) >= 0)
seconds_or_zero = values("seconds of at least 0", lambda value: _is_number(value, (int, float)) and float(value) >= 0)
not_below_zero = values("a number of at least 0", lambda value: _is_number(value, (int, float)) and 0 <= value < inf)
interval = values("seconds above 0", lambda value: _is_number(value, (int, float)) and float(value) > 0)


def num_bytes(name: str, value: Any) -> int:
    """A positive number of bytes, also from a string such as `"128MiB"`."""
    return parse_bytes(value, name)


def names(name: str, value: Any) -> list[str]:
    """A list of different names, at least one."""
    if isinstance(value, str):
        raise OptionError(f"{name}={value!r}: expected a list of names, such as [{value!r}].")
    if isinstance(value, (set, frozenset)):
        raise OptionError(f"{name}={value!r}: expected a list, because the order of a set differs between processes.")
    items = list(islice(value, _MOST_NAMES)) if isinstance(value, Iterable) else []
    if not items or not all(isinstance(item, str) for item in items):
        raise OptionError(f"{name}={value!r}: expected a list of at least one name, or None for all columns.")
    if len(set(items)) != len(items):
        raise OptionError(f"{name}={items!r}: a name occurs twice.")
    return items


def value_lists(name: str, value: Any) -> Any:
    """None, or a dict of column -> list of values."""
    for column, items in (mapping("column -> list of values")(name, value) or {}).items():
        if isinstance(items, (str, bytes)) or not hasattr(items, "__iter__"):
            raise OptionError(f"{name}={{{column!r}: {shown(items)}}}: expected a list of values.")
    return value


def name_lists(name: str, value: Any) -> Any:
    """None, or a dict of name -> list of names."""
    for key, items in (mapping('key -> list of columns, such as {"x": ["a", "b"]}')(name, value) or {}).items():
        if isinstance(items, str) or not isinstance(items, Sequence) or not all(isinstance(n, str) for n in items):
            raise OptionError(f"{name}={{{key!r}: {shown(items)}}}: expected a list of at least one column.")
    return value


def _is_named(value: Any) -> bool:
    """Whether it is a dict whose keys are names."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_number(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
