"""The limit on a process's open files: errors that are due to it, and what to do about them."""

from __future__ import annotations

import errno

from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError

_FULL = (errno.EMFILE, errno.ENFILE)


def too_many_files(error: BaseException) -> bool:
    """Whether an error, or one that led to it, is that too many files are open."""
    fault: BaseException | None = error
    for _ in range(20):  # errors may refer to each other in a circle
        if fault is None:
            return False
        inner = getattr(fault, "os_error", None)  # aiohttp's
        if getattr(fault, "errno", None) in _FULL or getattr(inner, "errno", None) in _FULL:
            return True
        fault = fault.__cause__ or fault.__context__
    return False


def reject_too_many(error: OSError) -> None:
    """Raise a clear error if this one, of no file of the data, is due to the limit.

    Raises:
        FileReadError: it is.
    """
    if not isinstance(error, DataLoaderUtilsError) and too_many_files(error):
        raise FileReadError(f"the data cannot be read: {type(error).__name__}: {error}. {remedy()}") from error


def remedy() -> str:
    """What to do: a sentence with the current limit."""
    return (
        f"Too many files are open{_limit()}: raise the limit with `ulimit -n 65536` in the shell that starts the job, "
        "or use fewer workers."
    )


def _limit() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return ""
    return f" (this process may open {resource.getrlimit(resource.RLIMIT_NOFILE)[0]})"
