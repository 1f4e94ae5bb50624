"""Calls of pyarrow's S3 client, and what a forked child must know of those that were under way in its parent.

All of pyarrow's S3 clients share a lock, which each call holds for reading and the creation of a client for writing.
In a child that is forked during a call nobody unlocks it: creating a client would wait without end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_calls: set[object] = set()
_locked = False


@contextmanager
def s3_call() -> Iterator[None]:
    """A context in which pyarrow's S3 client is created or called."""
    call = object()
    _calls.add(call)
    try:
        yield
    finally:
        _calls.discard(call)


def s3_locked() -> bool:
    """Whether this process was forked during a call, so that pyarrow can create no S3 client in it."""
    return _locked


def _forked() -> None:
    global _locked
    _locked = _locked or bool(_calls)
    _calls.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
