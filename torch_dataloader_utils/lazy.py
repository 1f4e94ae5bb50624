"""Properties that are computed once per object, without a lock that a fork may leave locked in the child."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):
        """As Python 3.12 has it. In Python 3.11, all objects of a class share a lock, which a thread may hold."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The value; two threads that ask for it at once both compute it."""
            if instance is None:
                return self
            if self.attrname not in instance.__dict__:
                instance.__dict__[self.attrname] = self.func(instance)
            return instance.__dict__[self.attrname]
