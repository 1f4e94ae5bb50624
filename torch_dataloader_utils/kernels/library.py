"""The compiled library of rows.c, if there was a C compiler when the package was built.

`hatch_build.py` compiles it into the file that `path` names, for which it runs this file, without the package's
dependencies. The name holds a digest of the source, so that a library of another version of rows.c is never loaded. It
does not end in `.so`: whatever walks through the package's modules would import it as one.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_uint32, c_void_p
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

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
    try:
        loaded = ctypes.CDLL(str(path()))
    except OSError:  # not compiled, not readable, or for another processor
        return None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None
    return loaded
