"""Retries: which errors are retried, how often, and for how long in all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, TypeVar

from torch_dataloader_utils.errors import DataLoaderUtilsError, MissingExtraError
from torch_dataloader_utils.events import Recorder, recorder
from torch_dataloader_utils.storage.locks import ForkLock
from torch_dataloader_utils.storage.waiting import answered

T = TypeVar("T")

_TRIES = 8
_SECONDS = 60.0  # no further try starts after this long
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0  # seconds: bounds of a random wait that doubles with each try

# Errors that a retry cannot fix: requests that are refused or invalid.
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
# The same for clients' own errors, by module: it is loaded if the client is used.
_CLIENTS_PERMANENT = {
    "botocore.exceptions": ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"),
    "google.auth.exceptions": ("DefaultCredentialsError", "MalformedError"),
    "azure.core.exceptions": ("ClientAuthenticationError", "ResourceNotFoundError"),
    "huggingface_hub.errors": ("OfflineModeIsEnabled",),
}
# HTTP statuses below 500 that ask for another try: timeout, too early, too many requests.
_LATER = (408, 425, 429)
_REFUSED = (401, 403)
# Codes of S3 for credentials that have ended, which some stores send with status 400.
_ENDED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "ExpiredTokenException")
_NO_RANGE = 416  # the range starts past the end of the file
# Packages whose errors have the status as `code`; in others, `code` may be something else.
_CODES = ("gcsfs.", "google.", "urllib.")
_COUNTING = ForkLock()


class ShortReadError(OSError):
    """A store sent fewer bytes of a file than were requested, although it has them."""


def retried(call: Callable[[], T], what: str, seconds: float, noted: Recorder | None = None) -> T:
    """What `call` returns, retried after transient errors.

    Waits are random and grow; the number of tries and the time are limited. The last error is raised unchanged, with a
    note.

    Args:
        call: what is tried, on a thread of its own if there is a limit.
        what: what is waited for, without secrets.
        seconds: the limit of the time for all tries; 0 for none.
        noted: the recorder that counts retries, by default this thread's; threads may share it.

    Raises:
        BatchTimeoutError: the time limit passed.
    """
    noted = noted or recorder()

    def count(state: Any) -> None:
        with _COUNTING:
            noted.count("retries")

    tries: Callable[[], T] = partial(_retrying().copy(before_sleep=count), call)
    return answered(tries, seconds, what)


def permanent(error: BaseException) -> bool:
    """Whether retrying cannot help, judged by the types and HTTP statuses of the error and its causes."""
    if isinstance(error, (DataLoaderUtilsError, MemoryError)) or not isinstance(error, Exception):
        return True
    chain = list(_causes(error))
    for fault in reversed(chain):
        status = status_of(fault)
        if status is not None:
            return 400 <= status < 500 and status not in _LATER
    # A client may report any failed metadata request as a missing file, so the first cause decides.
    return isinstance(chain[-1], (*_PERMANENT, *_loaded_permanent()))


def refused(error: BaseException) -> bool:
    """Whether a store refuses the credentials, judged as in `permanent`."""
    return any(
        isinstance(fault, PermissionError) or status_of(fault) in _REFUSED or _code_of(fault) in _ENDED
        for fault in _causes(error)
    )


def _code_of(error: BaseException) -> str | None:
    """The code of the store in an error of botocore, or None."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return code if isinstance(code, str) else None


def past_end(error: BaseException) -> bool:
    """Whether a file may end before the requested range: too few bytes arrived, or the range was refused."""
    return any(isinstance(fault, ShortReadError) or status_of(fault) == _NO_RANGE for fault in _causes(error))


def status_of(error: BaseException) -> int | None:
    """The HTTP status in a client's error (aiohttp, Azure, botocore, Google, httpx), or None."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        words = ("status", "status_code", *(["code"] if type(error).__module__.startswith(_CODES) else []))
        found = (getattr(holder, name, None) for holder in (error, response) for name in words)
        status = next((word for word in found if isinstance(word, (int, str))), None)
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
