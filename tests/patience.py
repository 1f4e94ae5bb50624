"""Tests of where time passes, on machines that may pause."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any


def tried_thrice(test: Callable[..., None]) -> Callable[..., None]:
    """The test passes if one of three tries does: a pause of the machine fails one of them, a fault all."""

    @wraps(test)
    def tried(*args: Any, **kwargs: Any) -> None:
        for _ in range(2):
            with suppress(AssertionError):
                test(*args, **kwargs)
                return
        test(*args, **kwargs)

    return tried
