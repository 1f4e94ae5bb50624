"""The one function through which texts pass before anybody may keep them."""

from __future__ import annotations

from torch_dataloader_utils.redaction.known import without_known
from torch_dataloader_utils.redaction.patterns import without_patterns


def printable(text: str) -> str:
    """A path or message without secrets: those that this process was given, and what looks like one.

    Lone surrogates, as in file names that are not UTF-8, are escaped: no stream or log file could be written otherwise.
    """
    clean = without_patterns(without_known(text))  # in this order: a secret may hide where a URL ends
    return clean if clean.isascii() else clean.encode("utf-8", "backslashreplace").decode()
