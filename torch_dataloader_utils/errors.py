"""The errors of the package.

Each is a `DataLoaderUtilsError` and also the builtin that a caller would catch:

    DataLoaderUtilsError
    ├── OptionError (ValueError)             an option's value cannot work
    ├── UnknownOptionError (TypeError)       a keyword does not exist
    ├── MissingExtraError (ImportError)      an optional dependency is not installed
    ├── DataNotFoundError (FileNotFoundError)  a path without data files
    ├── CatalogError (OSError)               a catalog cannot be reached or refuses access
    ├── SnapshotError (ValueError)           a table has no such snapshot, or it cannot be read as requested
    ├── FileReadError (OSError)              a file cannot be read or decoded
    │   ├── FileChangedError                 a file changed after it was planned
    │   └── DamagedFileError                 a file's content is damaged
    ├── ColumnNotFoundError (KeyError)       no file has this column
    ├── SchemaMismatchError (ValueError)     files (or a transform) disagree about a column
    ├── UnsupportedTypeError (TypeError)     the requested output cannot hold a column's type
    ├── NullValueError (ValueError)          a null in a column whose output type has none
    ├── UnknownValueError (ValueError)       a value is not in the vocabulary of a column of codes
    ├── RowErrors (ValueError)               a transform failed for some rows, and knows which
    ├── TooManyErrors (RuntimeError)         a transform failed for too many rows
    ├── BatchTimeoutError (TimeoutError)     no batch, or no answer of a store, arrived within `timeout` seconds
    ├── WorkerError (RuntimeError)           a worker process died
    ├── ShardingError (ValueError, RuntimeError)  the numbers of ranks and shards do not fit together
    ├── EmptyDatasetError (ValueError)       there are no rows to deliver
    ├── CountsRequiredError (ValueError)     row counts are needed but unknown
    ├── PlanMismatchError (RuntimeError)     the ranks' plans differ
    ├── CheckpointMismatchError (RuntimeError)  a checkpoint belongs to other data
    └── StaleIteratorError (RuntimeError)    an iterator's pass ended, for example because another one began
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

from torch_dataloader_utils.redaction import printable


@dataclass(frozen=True, slots=True)
class Example:
    """A value that the user chooses: a message shows its name, and a test follows the remedy with the example."""

    name: str
    value: Any

    def __repr__(self) -> str:
        """The name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of a call's keywords with which the call gets further; an error's sentence about it is its text.

    Attributes:
        given: the keywords to pass; an `Example`, also one within a dict, stands for a value that the user chooses.
        left_out: the keywords to leave out.
        effect: what follows from it, in a few words.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    effect: str = ""

    def __str__(self) -> str:
        """Such as `count_rows=True (counts once)`, `steps_per_epoch=n without even`, or `leave out even`."""
        passed = " and ".join(f"{name}={value!r}" for name, value in self.given.items())
        dropped = " and ".join(self.left_out)
        effect = f" ({self.effect})" if self.effect else ""
        if not passed:
            return f"leave out {dropped}{effect}"
        return f"{passed}{' without ' if dropped else ''}{dropped}{effect}"

    def applied(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of a call after the change."""
        kept = {name: value for name, value in keywords.items() if name not in self.left_out}
        return {**kept, **{name: _chosen(value) for name, value in self.given.items()}}


def _chosen(value: Any) -> Any:
    """The value with examples in the place of what the user chooses, also within a dict of options."""
    if isinstance(value, Mapping):
        return {name: _chosen(item) for name, item in value.items()}
    return value.value if isinstance(value, Example) else value


def use(effect: str = "", /, *, without: Sequence[str] = (), **given: Any) -> Remedy:
    """The remedy to pass these keywords, and to leave out those of `without`."""
    return Remedy(given, tuple(without), effect)


def leave_out(*names: str, effect: str = "") -> Remedy:
    """The remedy to leave out these keywords."""
    return Remedy(left_out=names, effect=effect)


def sentence(remedies: Sequence[Remedy]) -> str:
    """The sentence that names these remedies, such as "Use even='pad', or leave out steps_per_epoch."; "" for none."""
    texts = [str(remedy) for remedy in sorted(remedies, key=lambda remedy: not remedy.given)]
    if not texts:
        return ""
    joined = ", or ".join(texts) if len(texts) < 3 else f"{', '.join(texts[:-1])}, or {texts[-1]}"
    return f"Use {joined}." if any(remedy.given for remedy in remedies) else f"{joined[0].upper()}{joined[1:]}."


class DataLoaderUtilsError(Exception):
    """The base of every error that this package raises on purpose. Its message and notes hold no secret.

    Attributes:
        remedies: changes of the call's keywords, each of which mends the error; the message ends with them. Empty if
            what is to be done is no such change.
    """

    remedies: tuple[Remedy, ...] = ()

    def __init__(self, *args: object, remedies: Sequence[Remedy] = ()) -> None:
        if remedies:
            self.remedies = tuple(remedies)
            args = (f"{args[0]} {sentence(remedies)}", *args[1:])
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))

    def add_note(self, note: str) -> None:
        """Add a note, which a traceback shows after the message."""
        super().add_note(printable(note))

    # KeyError prints the repr of its argument, but our messages are sentences.
    __str__ = Exception.__str__


class OptionError(DataLoaderUtilsError, ValueError):
    """An option's value cannot work. The message says what was given and what is expected."""


class UnknownOptionError(DataLoaderUtilsError, TypeError):
    """A keyword does not exist. The message names the closest one."""


class MissingExtraError(DataLoaderUtilsError, ImportError):
    """An optional dependency is not installed. The message names the extra to install."""


class DataNotFoundError(DataLoaderUtilsError, FileNotFoundError):
    """A path holds no data files. The message says what was searched for and what the path holds."""


class CatalogError(DataLoaderUtilsError, OSError):
    """A catalog cannot be reached or refuses access. The message names it, without secrets."""


class SnapshotError(DataLoaderUtilsError, ValueError):
    """A table does not have the snapshot (any more), or cannot be read as requested."""


class FileReadError(DataLoaderUtilsError, OSError):
    """A file cannot be read or decoded. The message names the file and the piece of it."""


class FileChangedError(FileReadError):
    """A file changed after it was planned. The message says what it was and what it is now.

    Attributes:
        size: its current bytes; None if it has disappeared or its store does not report a size.
    """

    size: int | None = None


class DamagedFileError(FileReadError):
    """A file's content is damaged, or not of its format. `on_error="skip"` leaves out such files, and no others.

    Attributes:
        path: the file, as its storage names it; empty for the file that is being read.
    """

    path: str = ""


class ColumnNotFoundError(DataLoaderUtilsError, KeyError):
    """No file has this column. The message lists the existing columns."""


class SchemaMismatchError(DataLoaderUtilsError, ValueError):
    """A file's column has a type that cannot be widened to the merged one."""


class UnsupportedTypeError(DataLoaderUtilsError, TypeError):
    """The requested output cannot hold a column's type."""


class UnsupportedTypeWarning(UserWarning):
    """Columns have no tensor form, so batches hold Python objects. A filter can make it an error."""


class NullValueError(DataLoaderUtilsError, ValueError):
    """A null in a column whose output type has none. The message names file, column and remedies."""


class UnknownValueError(DataLoaderUtilsError, ValueError):
    """A value is not in the vocabulary of its column."""


class RowErrors(DataLoaderUtilsError, ValueError):
    """A transform failed for some of its rows, and knows for which. Raise it `from` one of their errors to show more.

    Args:
        errors: at least one, by the number of the row among the rows that the function was given, from 0.
        names: what the message calls some of these rows, by number; others are "row 0", "row 1", ...

    Attributes:
        errors: these, in the order of the rows.
    """

    errors: dict[int, Exception]

    def __init__(self, errors: Mapping[int, Exception], names: Mapping[int, str] | None = None) -> None:
        if not errors:
            raise OptionError("RowErrors({}): expected the error of at least one row.")
        self.errors = {int(row): errors[row] for row in sorted(errors)}
        self._names = dict(names or {})
        count = f"{len(errors):,} rows" if len(errors) > 1 else "1 row"
        first = list(islice(self.errors.items(), 3))
        texts = [f"{self._names.get(row, f'row {row}')}: {type(error).__name__}: {error}" for row, error in first]
        super().__init__(f"{count} failed: {'; '.join(texts)}{'; ...' if len(errors) > len(first) else ''}")

    def named(self, names: Mapping[int, str]) -> Self:
        """The same error, whose message has these names of rows."""
        made = type(self)(self.errors, names).with_traceback(self.__traceback__)
        made.__cause__, made.__context__ = self.__cause__, self.__context__
        made.__suppress_context__ = self.__suppress_context__
        for note in getattr(self, "__notes__", ()):
            made.add_note(note)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """From its errors, not from the message; with its notes."""
        return type(self), (self.errors, self._names), self.__dict__


class TooManyErrors(DataLoaderUtilsError, RuntimeError):
    """A transform failed for more rows than `max_errors`, or for all that are read together. The message has some."""


class SavedPreprocessError(DataLoaderUtilsError, ValueError):
    """A saved Preprocess is missing, damaged, edited, newer, or none. The message names file and remedy."""


class BatchTimeoutError(DataLoaderUtilsError, TimeoutError):
    """No batch, or no answer of a store, arrived within `timeout` seconds. The message names what was waited for."""


class WorkerError(DataLoaderUtilsError, RuntimeError):
    """A worker process died, or raised an error that cannot be transferred."""


class ShardingError(DataLoaderUtilsError, ValueError, RuntimeError):
    """The numbers of ranks, shards and batch sizes do not fit together. The message lists them."""


class EmptyDatasetError(DataLoaderUtilsError, ValueError):
    """There are no rows to deliver."""


class CountsRequiredError(DataLoaderUtilsError, ValueError):
    """Row counts are needed but unknown. The message names the ways to get them."""


class PlanMismatchError(DataLoaderUtilsError, RuntimeError):
    """The ranks' plans differ. The message lists each rank's side."""


class CheckpointMismatchError(DataLoaderUtilsError, RuntimeError):
    """A checkpoint was taken on other data or options. The message lists both sides."""


class StaleIteratorError(DataLoaderUtilsError, RuntimeError):
    """The iterator's pass ended: a later pass began, a state was loaded, or `close()` was called."""
