"""The secrets that this process was given, and how they look in the texts of others."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any
from urllib.parse import unquote

from torch_dataloader_utils.redaction.names import SECRET, is_secret
from torch_dataloader_utils.redaction.patterns import HIDDEN, SHORTEST, secrets_of

_ALONE = 8  # shorter words and numbers are hidden only where no letter or digit stands next to them
_PLAIN = re.compile(r"[A-Za-z]?[a-z]{0,6}|[0-9]{0,7}")
_MOST = 2_000  # kept; the oldest, such as credentials that a catalog renewed since, are dropped
_DEEPEST = 50  # levels of options
_LISTED = 100  # paths of a long list whose secrets are kept; the others' look alike
_ENVIRONMENT = (
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "GCS_",
    "GCSFS_",
    "FSSPEC_",
    "PYICEBERG_",
    "HF_TOKEN",
    "DATABRICKS_",
    "UNITY_",
)
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#(?:x27|39);"}
_BASE64 = r"[\w+/-]*"

# What makes the text after it a value: the name of a secret, with or without a separator, or a quote that ends there.
_NAMED = rf"(?i:{SECRET})[\w.-]*(?:[\\'\"]*\s?(?:[:=]|(?i:%3[ad]))\s?[\\'\"]*|\s(?:is\s)?)"
_QUOTE = r"(?:[\"'`]|&quot;|&#(?:x27|39);|%22|%27)"

# Secret and whether it is hidden everywhere -> a text that must occur where it does, and its pattern, which is compiled
# only there. Both are never changed, but replaced.
_known: dict[tuple[str, bool], tuple[str, str]] = {}
_longest_first: tuple[tuple[str, str], ...] = ()
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)  # another thread of the parent may hold it


def remember_secrets(*given: Any, names: tuple[str, ...] = ()) -> None:
    """Remember the secrets in paths and options, so that they are hidden from now on.

    Args:
        given: paths, and dicts of options at any depth; what is neither text nor a dict or list of texts is left out.
        names: the names under which these were given; none for a path.
    """
    for value in given:
        _learn(value, names, ())


def _learn(value: Any, names: tuple[str, ...], inside: tuple[int, ...]) -> None:
    """As `learn`, for one value inside of these containers."""
    if id(value) in inside or len(inside) == _DEEPEST:
        return
    inside = (*inside, id(value))
    with suppress(Exception):  # of a value's own methods: the call that it was given to says what is wrong with it
        if isinstance(value, Mapping):
            for name, inner in value.items():
                _learn(inner, (*names, str(name)), inside)
        elif isinstance(value, (list, tuple, set, frozenset)):
            login = isinstance(value, tuple) and len(value) == 2 and names  # (user, password)
            for inner in islice(value, 1 if login else 0, _LISTED):
                _learn(inner, names, inside)
        elif isinstance(value, (str, bytes, os.PathLike)):
            _learn_text(value.decode(errors="replace") if isinstance(value, bytes) else str(value), names)


def remember_environment() -> None:
    """Remember the secrets that clients of stores and catalogs take from the environment."""
    remember_secrets({name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)})


def without_known(text: str) -> str:
    """The text without the secrets that this process was given."""
    for anchor, pattern in _longest_first:
        if anchor in text:
            text = re.sub(pattern, _hidden, text)
    return text


def _hidden(match: re.Match[str]) -> str:
    return "".join(group or "" for group in match.groups()) + HIDDEN  # what marks a value stays


def _learn_text(value: str, names: tuple[str, ...]) -> None:
    if "://" in value:
        _add(_spellings(secrets_of(value)), everywhere=True)
    if is_secret(names, value):
        _add(_spellings(_parts_of(value)))


def _spellings(secrets: Iterable[str]) -> Iterator[str]:
    return (text.strip() for secret in secrets for text in (secret, unquote(secret)))


def _parts_of(value: str) -> Iterator[str]:
    """A secret, and those that it is made of: "id:secret", "Basic ...", the lines of a key, a connection string."""
    yield value
    yield from value.split(":") if "://" not in value else ()
    scheme, _, token = value.partition(" ")
    if scheme.lower() in ("basic", "bearer", "token"):
        yield token
        yield from _decoded(token)
    yield from (line for line in value.splitlines() if not line.startswith("-----"))
    pairs = (pair.partition("=") for pair in value.split(";"))
    yield from (text for name, _, text in pairs if is_secret((name,), text))


def _decoded(token: str) -> Iterator[str]:
    try:
        yield base64.b64decode(token, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return


def _add(secrets: Iterable[str], everywhere: bool = False) -> None:
    """Remember these secrets, too; the oldest of too many are dropped.

    Args:
        secrets: what is hidden.
        everywhere: hide plain words and numbers of fewer than eight characters, too, wherever they stand alone.
            Otherwise only where they are a value: quoted, or after the name of a secret. As options, they are mostly
            the "test" and "data" of servers for tests: without them, paths and messages would be unreadable.
    """
    global _known, _longest_first
    usable = {text for text in secrets if len(text) >= SHORTEST and text.strip(HIDDEN)}
    new = {key for text in usable if (key := (text, everywhere or not _PLAIN.fullmatch(text))) not in _known}
    if not new:
        return
    with _lock:
        kept = {**_known, **{key: seen for secret in new for key, seen in _sightings(*secret)}}
        _known = dict(islice(kept.items(), max(0, len(kept) - _MOST), None))
        _longest_first = tuple(_known[key] for key in sorted(_known, key=lambda key: len(key[0]), reverse=True))


def _sightings(secret: str, everywhere: bool) -> Iterator[tuple[tuple[str, bool], tuple[str, str]]]:
    """The secret and what base64 makes of it, each with a text that must occur where it does, and its pattern."""
    if everywhere:
        anchor = max(re.findall("[A-Za-z0-9]+", secret), key=len, default="")
        yield (secret, True), (anchor, _pattern(secret))
    else:
        yield (secret, False), (secret, rf"({_NAMED}){secret}(?![A-Za-z0-9])|(\\*{_QUOTE}){secret}(?=\\*{_QUOTE})")
    for core in _cores(secret):
        yield (core, True), (core, f"{_BASE64}{re.escape(core)}{_BASE64}=*")


def _pattern(secret: str) -> str:
    """Matches the secret, also where some of its characters are escaped as in URLs, Python, JSON or HTML."""
    text = "".join(map(_character, secret))
    if len(secret) >= _ALONE or not (secret.isalpha() or secret.isdigit()):
        return text
    return f"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f][0-9A-Fa-f])){text}(?![A-Za-z0-9])"


def _character(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    data = character.encode(errors="surrogatepass")
    forms = [
        rf"\\*{re.escape(character)}",
        "(?i:" + "".join(f"%(?:25)*{byte:02x}" for byte in data) + ")",
        rf"\\+(?i:{re.escape(repr(character)[1:-1].lstrip(chr(92)))})",
        "(?i:" + re.escape(json.dumps(character)[1:-1]).replace(r"\\", r"\\+") + ")",
        *([_ENTITIES[character]] if character in _ENTITIES else []),
        *([r"\+"] if character == " " else []),
    ]
    return f"(?:{'|'.join(forms)})"


def _cores(secret: str) -> Iterable[str]:
    """What base64 makes of the secret inside of any text: the characters that depend on the secret alone."""
    data = secret.encode(errors="surrogatepass")
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        core = text[-(-8 * before // 6) : 8 * (before + len(data)) // 6]
        if len(core) >= _ALONE:
            yield core
            if "+" in core or "/" in core:
                yield core.replace("+", "-").replace("/", "_")
