"""The compiled library of rows.c, if there was a C compiler when the package was built.

`hatch_build.py` compiles it into the file that `path` names, for which it runs this file, without the package's
dependencies. The name holds a digest of the source, so that a library of another version of rows.c is never loaded. It
does not end in `.so`: whatever walks through the package's modules would import it as one. A file beside it holds the
digest of its bytes: to load a library of which the end is missing ends the process (SIGBUS).
"""

from __future__ import annotations

import ctypes
import logging
from ctypes import c_int, c_size_t, c_uint32, c_void_p
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

_LOG = logging.getLogger("torch_dataloader_utils")

SOURCE = Path(__file__).with_name("rows.c")
_ARGUMENTS = {
    "tdu_take": (c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "tdu_put": (c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "tdu_count": (c_void_p, c_void_p, c_size_t, c_size_t, c_int),
    "tdu_select": (c_void_p, c_void_p, c_size_t, c_size_t, c_uint32, c_uint32),
    "tdu_into_buckets": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_int),
    "tdu_within_buckets": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "tdu_interleave": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t),
    "tdu_offsets": (c_void_p, c_void_p, c_void_p, c_size_t),
    "tdu_take_ranges": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t),
}


def path() -> Path:
    """The file of the library that is compiled from the present source."""
    return SOURCE.with_name(f"rows-{sha256(SOURCE.read_bytes()).hexdigest()[:16]}.library")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The library, whose functions release the GIL; None if there is none for this source and machine."""
    file = path()
    try:
        made = file.read_bytes()
    except OSError:  # not compiled, or not readable
        return None
    try:
        digest = file.with_name(f"{file.name}.sha256").read_bytes()
    except OSError:
        _warn(file, "the file with its digest is missing beside it")
        return None
    if sha256(made).hexdigest().encode() != digest:
        _warn(file, "it is damaged: its bytes do not match their digest")
        return None
    try:
        loaded = ctypes.CDLL(str(file))
        for name, arguments in _ARGUMENTS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, None
    except (OSError, AttributeError) as error:  # for another processor, or without one of the functions
        _warn(file, str(error))
        return None
    return loaded


def _warn(file: Path, problem: str) -> None:
    _LOG.warning(
        "%s is not used (%s): numpy does its work, and shuffling rows takes longer. Install the package again.",
        file,
        problem,
    )
