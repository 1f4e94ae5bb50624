"""Errors of others: what Python prints of them, and of the errors before them, without secrets."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from operator import is_
from typing import Any, ParamSpec, TypeVar

from torch_dataloader_utils.redaction.known import without_known
from torch_dataloader_utils.redaction.text import printable, redacted

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

# What builtin exceptions print besides their arguments.
_FIELDS = ("filename", "filename2", "strerror", "msg", "name", "path", "reason", "text", "object")


def redact_errors(call: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors show no secret; neither do the errors before them."""

    @wraps(call)
    def safe(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            instead = redacted_error(error)
            if instead is None:
                raise
        try:
            raise instead  # not while the other is handled, which would become its context
        finally:
            del instead  # its traceback holds this frame

    return safe


def redacts_errors(kind: type[T]) -> type[T]:
    """The class, with its public methods guarded."""
    for name, value in list(vars(kind).items()):
        if isfunction(value) and not name.startswith("_"):
            setattr(kind, name, redact_errors(value))
    return kind


def safe_repr(kind: type[T]) -> type[T]:
    """The class, whose instances have no secret in their repr."""
    plain = kind.__repr__

    def shown(self: T) -> str:
        return printable(plain(self))

    kind.__repr__ = shown  # type: ignore[assignment]
    return kind


def redacted_error(error: BaseException) -> BaseException | None:
    """Hides the secrets of an error and of those before it. Returns the error to raise instead; None: the same one."""
    clean = _cleaned(error, {})
    return None if clean is error else clean


def _cleaned(error: BaseException, seen: dict[int, BaseException | None], ours: bool = False) -> BaseException | None:
    """The error or one in its place, after the errors before it; None for one that comes after itself.

    Args:
        error: the error.
        seen: errors and what takes their places.
        ours: whether it is the reason for an error of this package.
    """
    key = id(error)
    if key in seen:
        return seen[key]
    seen[key] = None
    suppressed = error.__suppress_context__
    for link in ("__cause__", "__context__"):
        before = getattr(error, link)
        if before is not None:
            setattr(error, link, _cleaned(before, seen, ours or _is_ours(error)))
    error.__suppress_context__ = suppressed  # setting a cause changes it
    _rewrite(error)
    if ours and len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (printable(error.args[0]),)  # a decoder's message, with names and values of the data
    if isinstance(error, BaseExceptionGroup):
        error = _regrouped(error, [_cleaned(part, seen, ours) or part for part in error.exceptions])
    for held in getattr(error, "__dict__", {}).values():
        if type(held) is dict:  # such as the errors of rows
            parts = {name: part for name, part in held.items() if isinstance(part, BaseException)}
            held |= {name: _cleaned(part, seen, ours) or part for name, part in parts.items()}
    seen[key] = _stand_in(error) if _reveals(error) else error
    return seen[key]


def _regrouped(group: BaseExceptionGroup[Any], parts: list[BaseException]) -> BaseException:
    """The group of these errors, or another one of them if it, or its message, cannot stay."""
    message = redacted(group.message)
    if message == group.message and all(map(is_, parts, group.exceptions)):
        return group
    return _in_place_of(group, BaseExceptionGroup(message, parts))


def _rewrite(error: BaseException) -> None:
    """Replace the texts that the error is made of, where it lets us."""
    args = _plain(error.args)
    fields: dict[str, Any] = {name: getattr(error, name, None) for name in _FIELDS} | getattr(error, "__dict__", {})
    if args != error.args:
        error.args = args
    for name, value in fields.items():
        if isinstance(value, (str, bytes)) and _plain(value) != value:
            _set(error, name, _plain(value))
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        notes[:] = [printable(note) if isinstance(note, str) else note for note in notes]


def _plain(value: Any, depth: int = 2) -> Any:
    """The value without secrets in its texts, and in those of plain containers, down to this depth."""
    kind = type(value)
    if isinstance(value, str):
        return redacted(value)
    if kind is bytes:
        text = value.decode("latin-1")
        return value if (clean := without_known(text)) == text else clean.encode("latin-1")
    if depth and kind in (tuple, list, set, frozenset):
        return kind(_plain(inner, depth - 1) for inner in value)
    if depth and kind is dict:
        return {_plain(name, 0): _plain(inner, depth - 1) for name, inner in value.items()}
    return value


def _set(error: BaseException, name: str, value: Any) -> None:
    try:
        setattr(error, name, value)
    except (AttributeError, TypeError):
        return  # then the error is replaced


def _reveals(error: BaseException) -> bool:
    """Whether what Python prints of the error still shows a secret."""
    texts = [_text(error), *(arg for arg in error.args if isinstance(arg, str))]
    if type(error).__repr__ is not BaseException.__repr__ or not all(isinstance(arg, str) for arg in error.args):
        texts.append(repr(error))
    if any(redacted(text) != text for text in texts):
        return True
    return isinstance(error, BaseExceptionGroup) and any(map(_reveals, error.exceptions))


def _stand_in(error: BaseException) -> BaseException:
    """An error that says the same, without secrets."""
    return _in_place_of(error, RuntimeError(printable(f"{type(error).__name__}: {_text(error)}")))


def _in_place_of(error: BaseException, clean: E) -> E:
    """The error `clean`, with the traceback, the notes and the causes of another."""
    clean.__cause__, clean.__context__ = error.__cause__, error.__context__
    clean.__suppress_context__ = error.__suppress_context__
    for note in getattr(error, "__notes__", ()):
        clean.add_note(note)
    return clean.with_traceback(error.__traceback__)


def _is_ours(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == __name__.partition(".")[0]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - of any class
        return "an error without a text"
