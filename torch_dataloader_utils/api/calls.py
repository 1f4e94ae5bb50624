"""A call that makes a loader: the signature that people and tools read, and the function that runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

Signature = TypeVar("Signature", bound=Callable[..., Any])


def made_by(make: Callable[..., Any]) -> Callable[[Signature], Signature]:
    """A decorator for a signature without a body: a call goes to `make`, with the keywords that were given.

    So `make` can say which keyword was probably meant, and distinguish a given value from a default.
    """

    def decorate(signature: Signature) -> Signature:
        make.__qualname__ = signature.__qualname__  # what Python's own errors about arguments call it

        @wraps(signature)
        def call(*args: Any, **options: Any) -> Any:
            return make(*args, **options)

        return cast(Signature, call)

    return decorate
