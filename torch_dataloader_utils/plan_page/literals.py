"""Plain values as Python and YAML write them, exactly: whole numbers of any size, and keys of any type."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_WORDS = {"python": {None: "None", True: "True", False: "False"}, "yaml": {None: "null", True: "true", False: "false"}}
_BARE = re.compile(r"(\.{0,2}/|[A-Za-z_])[\w./-]*", re.ASCII)  # text that YAML takes for text, without quotes
_RESERVED = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))  # unless it is one of these words


def written(value: Any) -> dict[str, str] | None:
    """The value as text, by language ("python" and "yaml"); None if it is not plain: numbers, texts, lists, dicts."""
    try:
        texts = {language: _text(value, language) for language in _WORDS}
    except TypeError:
        return None
    return {**texts, "yaml": value} if isinstance(value, str) and _is_bare(value) else texts


def quoted(text: str) -> str:
    """The text in double quotes, as Python and YAML both read it."""
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in escaped)


def _text(value: Any, language: str) -> str:
    if value is None or isinstance(value, bool):
        return _WORDS[language][value]
    if isinstance(value, (str, os.PathLike)):
        return quoted(os.fspath(value))
    if isinstance(value, np.generic):
        return _text(value.item(), language)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(float(value), language)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(key, language)}: {_text(inner, language)}' for key, inner in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return _sequence([_text(inner, language) for inner in value], isinstance(value, tuple) and language == "python")
    raise TypeError(f"{type(value).__name__} is no plain value")


def _sequence(texts: list[str], is_tuple: bool) -> str:
    joined = ", ".join(texts)
    return f"({joined}{',' * (len(texts) == 1)})" if is_tuple else f"[{joined}]"


def _float(value: float, language: str) -> str:
    text = repr(value)
    if text[-1] in "fn":  # inf and nan
        return f'float("{text}")' if language == "python" else text.replace("inf", ".inf").replace("nan", ".nan")
    return re.sub(r"^(-?\d+)e", r"\1.0e", text)  # PyYAML takes 1e-07 for text


def _is_bare(text: str) -> bool:
    return _BARE.fullmatch(text) is not None and text.lower() not in _RESERVED


def _escaped(sign: str) -> str:
    return f"\\u{ord(sign):04x}" if ord(sign) < 2**16 else f"\\U{ord(sign):08x}"
