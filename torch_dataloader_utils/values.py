"""Values: what a feature is to those who use it, checked when it is made; and the checks of all options."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, ClassVar, NoReturn, Self, TypeAlias, dataclass_transform

import numpy as np

from torch_dataloader_utils.errors import DataLoaderUtilsError, OptionError, UnknownOptionError
from torch_dataloader_utils.printing import listed, shown
from torch_dataloader_utils.redaction import printable
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
    return dataclasses.field(
        default=default, metadata={"check": check, "doc": doc, "given": given, "keyword": keyword}, repr=repr
    )


def option_of(kind: type[Value], name: str, given: str | None = None) -> Any:
    """The same for an option that is a field of a value, too."""
    field = kind.fields[name]
    return option(field.default, field.check, doc=field.doc, given=given, repr=not field.secret)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """Options that are checked, each on its own, when they are created."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
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


@dataclasses.dataclass(frozen=True)
class Maybe:
    """None, or what `check` accepts."""

    check: Check

    def __call__(self, name: str, value: Any) -> Any:
        """The value, checked."""
        return None if value is None else self.check(name, value)


def maybe(check: Check) -> Check:
    """None, or what `check` accepts."""
    return Maybe(check)


@dataclasses.dataclass(frozen=True)
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
word = values("a name", lambda value: isinstance(value, str) and value != "" and _is_utf8(value))
_path = values("a path", lambda value: isinstance(value, (str, os.PathLike)) and bool(os.fspath(value)))


def path(name: str, value: Any) -> str:
    """A path, as text."""
    return os.fspath(_path(name, value))


def url_of(path: Any) -> str:
    """A path or URL as text.

    Raises:
        OptionError: it is no path.
    """
    try:
        url = path.__fspath__() if hasattr(path, "__fspath__") else getattr(path, "path", path)
    except Exception as error:  # whatever a foreign __fspath__ raises
        raise OptionError(f"path={shown(path)}: it has no name: {type(error).__name__}: {error}.") from error
    if not isinstance(url, str) or not url:
        given, expected = shown(path), "expected a path or URL, or a list of these."
        if "\n" in given:  # a table or a DataFrame
            raise OptionError(f"path is a {type(path).__name__}: {expected} Write its rows to a file, and read that.")
        raise OptionError(f"path={given}: {expected}")
    return url


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


def name_lists(name: str, value: Any) -> Any:
    """None, or a dict of name -> list of names."""
    for key, items in (mapping('key -> list of columns, such as {"x": ["a", "b"]}')(name, value) or {}).items():
        if isinstance(items, str) or not isinstance(items, Sequence) or not all(isinstance(n, str) for n in items):
            raise OptionError(f"{name}={{{key!r}: {shown(items)}}}: expected a list of at least one column.")
    return value


def _is_named(value: Any) -> bool:
    """Whether it is a dict whose keys are names."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_utf8(text: str) -> bool:
    """Whether Arrow can have it as a name: not with half a character, as Python's names of files may be."""
    return text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number."""
    return _is_number(value, int)


def _is_number(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


_REQUIRED: Any = object()  # the default of a field that has none


class Field:
    """One field of a value.

    Attributes:
        name: its name.
        default: what it is if it is not given.
        kept: what is stored then.
        check: returns what is stored of what was given, or raises an OptionError.
        doc: the line that documents it.
        secret: whether it is left out of reprs and errors; or a function that says so of a value.
        by_position: whether it can be given by position.
    """

    __slots__ = ("by_position", "check", "default", "doc", "kept", "name", "secret")

    def __init__(
        self, default: Any, check: Check | None, doc: str, secret: bool | Callable[[Any], bool], by_position: bool
    ) -> None:
        self.name = ""
        self.default, self.check, self.doc, self.secret, self.by_position = default, check, doc, secret, by_position
        self.kept = default

    def stored(self, value: Any, where: str) -> Any:
        """What is stored of a value; raises an OptionError, with `where` as its name, if it cannot be."""
        return checked(where, self._plain, value, self.doc)

    def _plain(self, where: str, value: Any) -> Any:
        value = plain(value)
        return value if self.check is None else plain(self.check(where, value))

    def hides(self, value: Any) -> bool:
        """Whether a value of it is left out of reprs and errors."""
        return self.secret(value) if callable(self.secret) else self.secret

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is _REQUIRED


def setting(
    *,
    default: Any = _REQUIRED,
    check: Check | None = None,
    doc: str = "",
    secret: bool | Callable[[Any], bool] = False,
    kw_only: bool = True,
) -> Any:
    """Declare a field of a value.

    Args:
        default: what it is if it is not given; without one, it must be given.
        check: returns what is stored of what was given, or raises an OptionError.
        doc: the line that documents it.
        secret: whether it is left out of reprs and errors; or a function that says so of a value.
        kw_only: False lets it be given by position, as the first field mostly is.
    """
    return Field(default, check, doc, secret, not kw_only)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
class Value:
    """What one feature of a loader is to be: frozen, checked when it is made, and equal to others of equal content.

    A subclass declares its fields with `setting`, and overrides `check` if they depend on each other. It is no
    dataclass, because OmegaConf turns instances of these into its own configs.

    Containers are copied: lists become tuples, and those of OmegaConf and numbers of NumPy become Python's own.

    Raises:
        OptionError: a field cannot have this value, or is missing.
        UnknownOptionError: there is no such field.
    """

    fields: ClassVar[Mapping[str, Field]] = {}

    def __init_subclass__(cls) -> None:
        found = dict(cls.fields)
        for name, field in list(vars(cls).items()):  # in the order in which they are declared
            if isinstance(field, Field):
                field.name = name
                if not field.is_required:
                    field.kept = field.stored(field.default, name)
                found[name] = field
                delattr(cls, name)
        cls.fields = found
        _document(cls, found.values())
        signature = inspect.Signature(
            [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD if field.by_position else inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.is_required else field.default,
                )
                for field in found.values()
            ]
        )
        setattr(cls, "__signature__", signature)  # noqa: B010 - what help() shows; no class declares it
        _KINDS[cls.__name__.lower()] = cls

    def __init__(self, *args: Any, **given: Any) -> None:
        kind, by_position = type(self).__name__, [field.name for field in self.fields.values() if field.by_position]
        if len(args) > len(by_position):
            raise UnknownOptionError(
                f"{kind}{_tuple_of(args)}: expected at most {len(by_position)} value(s) by position"
                f" ({', '.join(by_position)}); the others by name: {_call(self)}."
            )
        for name, value in zip(by_position, args, strict=False):
            if name in given:
                raise UnknownOptionError(f"{kind}: {name} was given twice, by position and by name.")
            given[name] = value
        for name in given:
            if name not in self.fields:
                near = _closest(name, self.fields)
                meant = f" Did you mean {near}?" if near else ""
                raise UnknownOptionError(f"{kind} has no field {name!r}: {_call(self)}.{meant}")
        for name, field in self.fields.items():
            if name not in given and field.is_required:
                raise OptionError(f"{kind}: {name} is missing, {field.doc}: {_call(self)}.")
            vars(self)[name] = field.stored(given[name], f"{kind}: {name}") if name in given else field.kept
        self.check()

    def check(self) -> None:
        """Check fields that depend on each other.

        Raises:
            OptionError: they exclude each other.
        """

    def replace(self, **changes: Any) -> Self:
        """A copy with these fields changed, checked as a new one."""
        return type(self)(**{**vars(self), **changes})

    __replace__ = replace  # what copy.replace calls, from Python 3.13 on

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed: make another by .replace({name}=...)")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return _key(self) == _key(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_key(self))

    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults, by name."""
        own = {name: (field, getattr(self, name)) for name, field in self.fields.items()}
        return {name: item for name, (field, item) in own.items() if field.is_required or not _same(item, field.kept)}

    def text(self, show: Callable[[str, Any], str]) -> str:
        """How it is made, as Python, with these texts of its fields by name; those that are secret are left out."""
        items = [(self.fields[name], item) for name, item in self.given().items() if not self.fields[name].hides(item)]
        # Only the first may be given by position: the others would take its place if it is left out.
        first = next((name for name, field in self.fields.items() if field.by_position), None)
        texts = [f"{'' if field.name == first else f'{field.name}='}{show(field.name, item)}" for field, item in items]
        return f"{type(self).__name__}({', '.join(texts)})"

    def short(self) -> str:
        """How it can be given to an option: its first field alone, if that says all; else its repr."""
        given, first = self.given(), next((name for name, field in self.fields.items() if field.by_position), None)
        return printable(_repr(given[first])) if first is not None and list(given) == [first] else repr(self)

    @property
    def made_by(self) -> str:
        """The name of the class whose call makes it."""
        return type(self).__name__

    def __repr__(self) -> str:
        return printable(self.text(lambda _, item: _repr(item)))

    def to_dict(self) -> dict[str, Any]:
        """The value as a dict that JSON and YAML hold: `kind`, and the fields that differ from their defaults.

        Raises:
            OptionError: a field holds what they cannot, such as a function.
        """
        kind = type(self).__name__
        return {"kind": kind.lower(), **{name: _json(item, f"{kind}: {name}") for name, item in self.given().items()}}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """The value of a dict, as `to_dict` returns it; `kind` may be left out of one for a class that is no base.

        Raises:
            OptionError: the dict names no kind, or another than this one.
        """
        content = dict(plain(given))
        word = content.pop("kind", cls.__name__)
        kind = _KINDS.get(word.lower()) if isinstance(word, str) else None
        if kind is None or not issubclass(kind, cls) or kind is Value:
            kinds = sorted(name for name, each in _KINDS.items() if issubclass(each, cls))
            near = _closest(word.lower(), kinds) if isinstance(word, str) and len(kinds) > 1 else None
            expected = (
                f"one of {listed(kinds, show=repr)}" if near is None and len(kinds) > 1 else repr(near or kinds[0])
            )
            raise OptionError(f"kind={shown(word)}: expected {expected}.")
        for name in content:
            if not isinstance(name, str):
                raise UnknownOptionError(f"{kind.__name__} has no field {shown(name)}: its fields have names.")
        return kind(**content)

    @classmethod
    def of(cls, given: Any) -> Self:
        """The value that was given: itself, as a dict, or by its first field alone."""
        if isinstance(given, cls):
            return given
        return cls.from_dict(given) if isinstance(plain(given), Mapping) else cls(given)


_KINDS: dict[str, type[Value]] = {}


def kind_named(name: str) -> type[Value]:
    """The class of values of this name, in any case."""
    return _KINDS[name.lower()]


def declared(kind: type[Value]) -> list[dataclasses.Field[Any]]:
    """The fields of a value but its first, as options of a call are declared."""
    items = []
    for name in list(kind.fields)[1:]:
        item = option_of(kind, name)
        item.name, item.type = name, kind.__annotations__[name]
        items.append(item)
    return items


def a(kind: type[Value]) -> Check:
    """A check for an option that is a value: given as one, as a dict, or by its first field alone."""
    return lambda name, given: kind.of(given)


def _document(kind: type[Value], fields: Iterable[Field]) -> None:
    """Add the fields to what help() shows, in the form of a docstring's arguments, before what it raises."""
    if kind.__doc__ and fields:
        about, raises, rest = kind.__doc__.partition("\n    Raises:")
        lines = "".join(f"        {field.name}: {field.doc}.\n" for field in fields)
        kind.__doc__ = f"{about.rstrip()}\n\n    Args:\n{lines}{raises}{rest}"


@dataclasses.dataclass(frozen=True)
class ByColumn:
    """One of these words, or a value of this kind; or a dict of column, pattern or type -> one of these."""

    allowed: tuple[str, ...]
    kind: type[Value] | None = None

    def __call__(self, name: str, value: Any) -> Any:
        """The value, checked, with the dicts in it that have a `kind` as values."""
        if not isinstance(value, Mapping):
            return self._leaf(name, value)
        for key in value:
            if not isinstance(key, str):
                raise OptionError(f"{name}={shown(value)}: expected a dict whose keys are columns, patterns or types.")
        checked = {key: self._leaf(f"{name}[{key!r}]", leaf) for key, leaf in value.items()}
        return checked["*"] if checked.keys() == {"*"} else checked

    def _leaf(self, name: str, given: Any) -> Any:
        if isinstance(given, str) and given in self.allowed:
            return given
        if self.kind is not None and isinstance(given, self.kind):
            return given
        content = plain(given)
        if self.kind is not None and isinstance(content, Mapping) and "kind" in content:
            return self.kind.from_dict(content)
        kind = "" if self.kind is None else f" or {self.kind.__name__}(...)"
        raise OptionError(
            f"{name}={shown(given)}: expected {', '.join(map(repr, self.allowed))}{kind}, or a dict of these by column "
            "('*' is all columns)."
        )


def plain_value(value: Any) -> Any:
    """The value as plain Python objects.

    Containers from a config file (OmegaConf's, as Hydra passes them) become lists and dicts; numpy numbers become
    Python numbers.
    """
    if type(value).__module__.startswith("omegaconf."):
        return sys.modules["omegaconf"].OmegaConf.to_container(value, resolve=True)
    return value.item() if isinstance(value, (np.integer, np.floating, np.bool_)) else value


def plain(value: Any) -> Any:
    """The same at any depth, with lists as tuples."""
    value = plain_value(value)
    if type(value) in (list, tuple):
        return tuple(map(plain, value))
    return {key: plain(item) for key, item in value.items()} if type(value) is dict else value


def _key(value: Any) -> Any:
    """What makes it equal to another: dicts without their order."""
    if isinstance(value, Value):
        return type(value), tuple(_key(getattr(value, name)) for name in value.fields)
    if isinstance(value, Mapping):
        return dict, frozenset((key, _key(item)) for key, item in value.items())
    return tuple(map(_key, value)) if type(value) is tuple else value


def _same(value: Any, default: Any) -> bool:
    """Whether a field has its default: 1 is 1.0, but no bool is a number."""
    numbers = {type(value), type(default)} == {int, float}
    return (numbers or type(value) is type(default)) and bool(_key(value) == _key(default))


def _repr(value: Any) -> str:
    """As Python writes it: lists, which are kept as tuples, as lists."""
    if type(value) is tuple:
        return f"[{', '.join(map(_repr, value))}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{_repr(key)}: {_repr(item)}' for key, item in value.items())}}}"
    return shown(value)


def _json(value: Any, where: str) -> Any:
    if isinstance(value, Value):
        return value.to_dict()
    if type(value) is tuple:
        return [_json(item, where) for item in value]
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: _json(item, where) for key, item in value.items()}
    finite = not isinstance(value, float) or math.isfinite(value)
    if (value is None or isinstance(value, (str, int, float))) and finite:
        return value
    raise OptionError(f"{where} is {shown(value)}, which a dict for JSON or YAML cannot hold.")


def _closest(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _call(value: Value) -> str:
    """How a value is made, as text."""
    fields = [
        field.name if field.is_required else f"{field.name}={_repr(plain(field.default))}"
        for field in value.fields.values()
    ]
    return f"{type(value).__name__}({', '.join(fields)})"


def _tuple_of(args: tuple[Any, ...]) -> str:
    return f"({', '.join(map(shown, args))})"
