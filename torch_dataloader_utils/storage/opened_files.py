"""The remote files that this process has open: threads share them, and some are kept for later reads."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from torch_dataloader_utils.storage.clients import Opened
from torch_dataloader_utils.storage.locks import ForkLock

Key: TypeAlias = tuple[Any, ...]

# Files kept although no one reads them: opening one again would cost a request. One takes about 2 KiB.
_KEPT = 4096


class OpenedFiles:
    """Open files by key; for any number of threads. A forked child begins without any."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._shared: WeakValueDictionary[Key, Opened] = WeakValueDictionary()
        self._kept: OrderedDict[Key, Opened] = OrderedDict()

    def get(self, key: Key) -> Opened | None:
        """The file that was added under this key, if it is still open."""
        with self._lock:
            return self._shared.get((os.getpid(), key))

    def add(self, key: Key, opened: Opened) -> None:
        """Share a file while it is in use; a `reusable` one also after that, unless too many were added since."""
        place = os.getpid(), key
        with self._lock:
            self._shared[place] = opened
            if opened.reusable:
                self._kept[place] = opened
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
