"""The errors of the package.

Each is a `DataLoaderUtilsError` and also the builtin that a caller would catch:

    DataLoaderUtilsError
    ├── OptionError (ValueError)             an option's value cannot work
    ├── UnknownOptionError (TypeError)       a keyword that does not exist here
    ├── MissingExtraError (ImportError)      an optional dependency is not installed
    ├── DataNotFoundError (FileNotFoundError)  a path without data files
    ├── CatalogError (OSError)               a catalog cannot be reached, or refuses
    ├── SnapshotError (ValueError)           a table has no such snapshot, or it cannot be read as asked
    ├── FileReadError (OSError)              a file cannot be read or decoded
    │   └── FileChangedError                 a file is not what it was when it was planned
    ├── ColumnNotFoundError (KeyError)       a column that no file has
    ├── SchemaMismatchError (ValueError)     files (or a transform) disagree about a column
    ├── UnsupportedTypeError (TypeError)     a column type that the asked-for output cannot hold
    ├── NullValueError (ValueError)          a null where the output type has none
    ├── UnknownValueError (ValueError)       a value outside the vocabulary of a column of codes
    ├── BatchTimeoutError (TimeoutError)     no batch within `timeout` seconds
    ├── WorkerError (RuntimeError)           a worker process died
    ├── ShardingError (ValueError, RuntimeError)  ranks and shards do not fit
    ├── EmptyDatasetError (ValueError)       nothing to deliver
    ├── CountsRequiredError (ValueError)     row counts are needed and not known
    ├── PlanMismatchError (RuntimeError)     ranks disagree about the plan
    ├── CheckpointMismatchError (RuntimeError)  a checkpoint of other data
    └── StaleIteratorError (RuntimeError)    a pass that was ended, such as by another one on its loader
"""


class DataLoaderUtilsError(Exception):
    """The base of every error that this package raises on purpose."""

    # KeyError prints the repr of its argument: our messages are sentences.
    __str__ = Exception.__str__


class OptionError(DataLoaderUtilsError, ValueError):
    """An option's value cannot work: says what was given and what is expected."""


class UnknownOptionError(DataLoaderUtilsError, TypeError):
    """A keyword that does not exist here: says which one was probably meant."""


class MissingExtraError(DataLoaderUtilsError, ImportError):
    """An optional dependency is not installed: names the extra that brings it."""


class DataNotFoundError(DataLoaderUtilsError, FileNotFoundError):
    """A path holds no data files: says what was searched for, and what the path holds."""


class CatalogError(DataLoaderUtilsError, OSError):
    """A catalog cannot be reached, or refuses: names it, and no secret."""


class SnapshotError(DataLoaderUtilsError, ValueError):
    """A table has no such snapshot (any more), or it cannot be read in the way that was asked."""


class FileReadError(DataLoaderUtilsError, OSError):
    """A file cannot be read or decoded: names the file and the piece of it."""


class FileChangedError(FileReadError):
    """A file is not the one that was planned: says what it was, and what it is.

    Attributes:
        size: bytes that it has now; None where it has gone, or its store does not say.
    """

    size: int | None = None


class ColumnNotFoundError(DataLoaderUtilsError, KeyError):
    """A column that no file has: lists the columns there are."""


class SchemaMismatchError(DataLoaderUtilsError, ValueError):
    """A file's column has a type that cannot be widened to the resolved one."""


class UnsupportedTypeError(DataLoaderUtilsError, TypeError):
    """A column's type that the asked-for output cannot hold."""


class NullValueError(DataLoaderUtilsError, ValueError):
    """A null in a column whose output type has none: names file, column and remedies."""


class UnknownValueError(DataLoaderUtilsError, ValueError):
    """A value that the vocabulary of its column does not hold."""


class BatchTimeoutError(DataLoaderUtilsError, TimeoutError):
    """No batch arrived within `timeout` seconds."""


class WorkerError(DataLoaderUtilsError, RuntimeError):
    """A worker process died, or raised what cannot be carried over."""


class ShardingError(DataLoaderUtilsError, ValueError, RuntimeError):
    """Ranks, shards and batch sizes do not fit together: lists the values."""


class EmptyDatasetError(DataLoaderUtilsError, ValueError):
    """There is no row to deliver."""


class CountsRequiredError(DataLoaderUtilsError, ValueError):
    """Row counts are needed and not known: names the ways to get them."""


class PlanMismatchError(DataLoaderUtilsError, RuntimeError):
    """The ranks of a job disagree about the plan: lists each rank's side."""


class CheckpointMismatchError(DataLoaderUtilsError, RuntimeError):
    """A checkpoint was taken on other data or options: prints both sides."""


class StaleIteratorError(DataLoaderUtilsError, RuntimeError):
    """This iterator's pass was ended: by a later pass on its loader, by a loaded state, or by `close()`."""
