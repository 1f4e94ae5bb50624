"""Calls that make loaders: a signature for people and tools, and the function that runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from torch_dataloader_utils.distributed.meeting import note_failure
from torch_dataloader_utils.file_limit import reject_too_many
from torch_dataloader_utils.redaction import redact_errors, remember_environment, remember_secrets
from torch_dataloader_utils.values import Value

_WITH_SECRETS = ("source", "datasets", "path", "table", "manifest", "storage_options", "catalog_config")
Signature = TypeVar("Signature", bound=Callable[..., Any])


def implemented_by(make: Callable[..., Any]) -> Callable[[Signature], Signature]:
    """A decorator for a signature without a body: calls run `make`, with only the keywords that were given.

    This lets `make` name the keyword that was probably meant, and distinguish a given value from a default.
    """

    def decorate(signature: Signature) -> Signature:
        make.__qualname__ = signature.__qualname__  # the name in Python's own errors about arguments

        @wraps(signature)
        @redact_errors
        def call(*args: Any, **options: Any) -> Any:
            remember_environment()
            given = [*args[:1], *map(options.get, _WITH_SECRETS)]
            remember_secrets(*given, *(vars(value) for value in given if isinstance(value, Value)))
            try:
                return make(*args, **options)
            except Exception as error:
                note_failure()
                if isinstance(error, OSError):
                    reject_too_many(error)
                raise

        return cast(Signature, call)

    return decorate
