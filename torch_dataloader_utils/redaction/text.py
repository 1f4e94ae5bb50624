"""What texts pass before anybody may keep them: `printable` for people, `redacted` for programs."""

from __future__ import annotations

import re

from torch_dataloader_utils.redaction.known import without_known
from torch_dataloader_utils.redaction.patterns import without_patterns

# What a terminal obeys instead of showing it (C0 but for tabs and newlines, DEL, C1), and what changes the direction or
# the lines of the text around it.
_OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\r(?!\n)")


def printable(text: str) -> str:
    """A path or message for people: without secrets, and with control characters escaped, which a name may hold.

    Names and values come from whoever wrote the data: escape sequences in them would change what a terminal shows, or
    what it does.
    """
    # Escaped first: a secret is found in either form, and escapes must not become a part of one.
    return redacted(text if text.isprintable() else _OBEYED.sub(_escaped, text))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def redacted(text: str) -> str:
    """A path or message without secrets: those that this process was given, and what looks like one.

    Lone surrogates, as in file names that are not UTF-8, are escaped: no stream or log file could be written otherwise.
    """
    clean = without_patterns(without_known(text))  # in this order: a secret may hide where a URL ends
    return clean if clean.isascii() else clean.encode("utf-8", "backslashreplace").decode()
