"""Trying again: what may pass, how often, and how long in all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from torch_dataloader_utils.errors import DataLoaderUtilsError, MissingExtraError
from torch_dataloader_utils.events import Recorder, recorder
from torch_dataloader_utils.storage.locks import ForkLock

T = TypeVar("T")

_TRIES = 8
_SECONDS = 60.0  # after so long no further try begins
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0  # seconds: bounds of a random wait that doubles from try to try

# What no second try changes: requests that are refused, or cannot be right.
_PERMANENT = (
    DataLoaderUtilsError,
    PermissionError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    MemoryError,
    ImportError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
# The same of clients' own errors, by the module that is loaded where the client is used.
_CLIENTS_PERMANENT = {
    "botocore.exceptions": ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"),
    "google.auth.exceptions": ("DefaultCredentialsError", "MalformedError"),
    "azure.core.exceptions": ("ClientAuthenticationError", "ResourceNotFoundError"),
}
# HTTP statuses below 500 that ask for another try: timeout, too early, too many requests.
_LATER = (408, 425, 429)
_REFUSED = (401, 403)
_NO_RANGE = 416  # the range begins behind the end of the file
# Packages that call a status `code`; to others that may be something else.
_CODES = ("gcsfs.", "google.", "urllib.")
_COUNTING = ForkLock()


class ShortReadError(OSError):
    """A store sent fewer bytes of a file than were asked for, though it has them."""


def retried(call: Callable[[], T], noted: Recorder | None = None) -> T:
    """What `call` returns, tried again after faults that may pass.

    Waits are random and grow; tries and time are bounded. The last fault is raised as it is, with a note.

    Args:
        call: what is tried.
        noted: where further tries are counted, by default where this thread notes; threads may share it.
    """
    noted = noted or recorder()

    def count(state: Any) -> None:
        with _COUNTING:
            noted.count("retries")

    result: T = _retrying().copy(before_sleep=count)(call)
    return result


def permanent(error: BaseException) -> bool:
    """Whether trying again cannot help, by the types and HTTP statuses of the error and of what caused it."""
    if isinstance(error, (DataLoaderUtilsError, MemoryError)) or not isinstance(error, Exception):
        return True
    chain = list(_causes(error))
    for fault in reversed(chain):
        status = status_of(fault)
        if status is not None:
            return 400 <= status < 500 and status not in _LATER
    # A client may report any fault of an inquiry as a missing file: the first cause decides.
    return isinstance(chain[-1], (*_PERMANENT, *_loaded_permanent()))


def refused(error: BaseException) -> bool:
    """Whether a store refuses the credentials: known as in `permanent`."""
    return any(isinstance(fault, PermissionError) or status_of(fault) in _REFUSED for fault in _causes(error))


def past_end(error: BaseException) -> bool:
    """Whether a file may be shorter than what was asked of it: less came, or the range was refused."""
    return any(isinstance(fault, ShortReadError) or status_of(fault) == _NO_RANGE for fault in _causes(error))


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of a client carries: aiohttp's, Azure's, Google's, botocore's."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        words = ("status", "status_code", *(["code"] if type(error).__module__.startswith(_CODES) else []))
        status = next((word for name in words if isinstance(word := getattr(error, name, None), (int, str))), None)
    return int(status) if str(status).isdigit() else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its explicit causes, the first cause last."""
    fault: BaseException | None = error
    while fault is not None:
        yield fault
        fault = fault.__cause__


def _loaded_permanent() -> Iterator[type[BaseException]]:
    for module, names in _CLIENTS_PERMANENT.items():
        if module in sys.modules:
            yield from (kind for name in names if (kind := getattr(sys.modules[module], name, None)) is not None)


@lru_cache(maxsize=1)
def _retrying() -> Any:
    try:
        import tenacity  # only remote stores need it
    except ImportError as error:
        raise MissingExtraError(
            "files that are not on the local disk need tenacity: pip install 'torch-dataloader-utils[remote]'"
        ) from error

    def give_up(state: Any) -> Any:
        error = state.outcome.exception()
        error.add_note(f"given up after {state.attempt_number} tries in {state.seconds_since_start:.0f} s")
        raise error

    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_TRIES) | tenacity.stop_after_delay(_SECONDS),
        wait=tenacity.wait_random_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT),
        retry=tenacity.retry_if_exception(lambda error: not permanent(error)),
        retry_error_callback=give_up,
    )
