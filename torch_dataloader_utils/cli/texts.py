"""Values of options from the text on a command line."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from torch_dataloader_utils.errors import OptionError

_TEXTS = ("str", "str | None", "str | os.PathLike[str] | None")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def value_of(text: str, item: Field[Any]) -> Any:
    """The value of an option, from its text and its declaration.

    Names separated by commas where a list of names is declared; an imported object for `module:name` where objects
    are allowed; the text itself where only texts are; else as `plain`.

    Raises:
        OptionError: `module:name` cannot be imported, or a list or dict is not valid.
    """
    kind = str(item.type)
    if text == "null":
        return None
    if kind in _TEXTS:
        return text
    if "Sequence[str]" in kind and "Mapping" not in kind and not text.startswith("["):
        return text.split(",")
    if ("Any" in kind or "Callable" in kind) and _OBJECT.fullmatch(text):
        found = imported(text, item.name)
        return found() if item.name == "split_strategy" and isinstance(found, type) else found
    return plain(text, item.name)


def plain(text: str, name: str) -> Any:
    """A number, true, false or null as in JSON; a list or dict as in JSON or YAML; else the text.

    Raises:
        OptionError: it begins like a list or dict, and is none. The message does not show it: it may hold a secret.
    """
    try:
        return json.loads(text)
    except ValueError:
        if text[:1] not in ("[", "{"):
            return text
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise OptionError(f"{name}: expected a list or dict as in JSON or YAML, such as '{{key: value}}'.") from None


def pairs(texts: Sequence[str], name: str) -> dict[str, str]:
    """A dict of the texts `key=value`.

    Raises:
        OptionError: a text has no "=". The message does not show it: it may hold a secret.
    """
    split = [text.partition("=") for text in texts]
    for number, (key, equals, _) in enumerate(split, 1):
        if not key or not equals:
            raise OptionError(f"{name}, number {number}: expected key=value.")
    return {key: value for key, _, value in split}


def imported(text: str, name: str) -> Any:
    """The object that `module:name` names; modules in the current folder are found, too.

    Raises:
        OptionError: it does not exist.
    """
    module, _, attribute = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"{name}={text!r}: {error}; expected module:name, a name at the top level of a module that can be imported."
        ) from error


def config_of(path: Path, expected: str = "keywords of create_dataloader, each with its value") -> dict[str, Any]:
    """The mapping in a YAML or JSON file.

    Args:
        path: of the file.
        expected: what it maps, for errors.

    Raises:
        OptionError: it cannot be read, or holds something else. The message does not show the content.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        why = error.strerror if isinstance(error, OSError) else "it is not YAML or JSON"
        raise OptionError(f"{path}{line}: {why}.") from None
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise OptionError(f"{path}: expected {expected}.")
    return dict(content)
