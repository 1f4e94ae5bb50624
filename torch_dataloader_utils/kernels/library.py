"""The compiled libraries of the C files beside this one, if there was a C compiler when the package was built.

`hatch_build.py` compiles each into the file that `paths` names, for which it runs this file, without the package's
dependencies. The name holds a digest of the source, so that a library of another version of it is never loaded. It
does not end in `.so`: whatever walks through the package's modules would import it as one. A file beside it holds the
digest of its bytes: to load a library of which the end is missing ends the process (SIGBUS).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_size_t, c_uint32, c_void_p
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("torch_dataloader_utils")

SOURCE = Path(__file__).with_name("rows.c")
PAGES = Path(__file__).with_name("pages.c")
_ARGUMENTS = {
    "tdu_take": (c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "tdu_put": (c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "tdu_count": (c_void_p, c_void_p, c_size_t, c_size_t, c_int),
    "tdu_select": (c_void_p, c_void_p, c_size_t, c_size_t, c_uint32, c_uint32),
    "tdu_into_buckets": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_int),
    "tdu_within_buckets": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "tdu_interleave": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t),
    "tdu_ranges": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t),
    "tdu_take_ranges": (c_void_p, c_void_p, c_void_p, c_size_t),
    "tdu_stack": (c_void_p, c_void_p, c_size_t, c_size_t, c_size_t),
}


_OF_PAGES = {
    "tdu_prepare": (),
    "tdu_decode": (c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
    "tdu_deliver": (c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p),
}


def paths() -> dict[Path, Path]:
    """The files of the libraries that are compiled from the present sources, by source."""
    return {source: path(source) for source in sorted(Path(__file__).parent.glob("*.c"))}


def path(source: Path | None = None) -> Path:
    """The file of the library that is compiled from a source as it is now; None: rows.c."""
    source = source or SOURCE
    return source.with_name(f"{source.stem}-{sha256(source.read_bytes()).hexdigest()[:16]}.library")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """That of rows.c, whose functions release the GIL; None if there is none for this source and machine."""
    return loaded(SOURCE, _ARGUMENTS, "numpy does its work, and shuffling rows takes longer")


@lru_cache(maxsize=1)
def pages_library() -> ctypes.CDLL | None:
    """That of pages.c, likewise."""
    if os.name != "posix" or sys.byteorder != "little":  # it reads files by pread, and numbers as they are stored
        return None
    found = loaded(PAGES, _OF_PAGES, "pyarrow does its work, and decoding Parquet files takes longer")
    if found is not None:
        found.tdu_prepare()
    return found


def loaded(source: Path, functions: Mapping[str, Sequence[Any]], otherwise: str) -> ctypes.CDLL | None:
    """The library of a source, with the arguments of its functions; None if there is none for this source and machine.

    Args:
        source: the C file.
        functions: the types of each function's arguments, by name; they return nothing.
        otherwise: what happens without it, for the warning of one that cannot be loaded.
    """
    file = path(source)
    try:
        made = file.read_bytes()
    except OSError:  # not compiled, or not readable
        return None
    try:
        digest = file.with_name(f"{file.name}.sha256").read_bytes()
    except OSError:
        _warn(file, "the file with its digest is missing beside it", otherwise)
        return None
    if sha256(made).hexdigest().encode() != digest:
        _warn(file, "it is damaged: its bytes do not match their digest", otherwise)
        return None
    try:
        loaded = ctypes.CDLL(str(file))
        for name, arguments in functions.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, None
    except (OSError, AttributeError) as error:  # for another processor, or without one of the functions
        _warn(file, str(error), otherwise)
        return None
    return loaded


def _warn(file: Path, problem: str, otherwise: str) -> None:
    _LOG.warning("%s is not used (%s): %s. Install the package again.", file, problem, otherwise)
