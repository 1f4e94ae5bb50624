"""Checks pyiceberg's own configuration, which pyiceberg reads when it is imported."""

from __future__ import annotations

import os

from pyiceberg.utils.config import PYICEBERG_HOME, PYICEBERG_YML, Config

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.redaction import printable


def check_configuration() -> None:
    """Check that pyiceberg can read its configuration; its own errors print lines of the file, with their secrets.

    Raises:
        OptionError: it cannot.
    """
    try:
        Config()
    except Exception as error:  # noqa: BLE001 - of the YAML parser, of the file's encoding, or of values that contradict each other
        raise OptionError(_message(error)) from None


def _message(error: Exception) -> str:
    folders = [os.environ.get(PYICEBERG_HOME), os.path.expanduser("~"), os.getcwd()]
    files = [os.path.join(folder, PYICEBERG_YML) for folder in folders if folder]
    file = next((file for file in files if os.path.isfile(file)), "the environment variables PYICEBERG_*")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = "" if mark is None else f", line {mark.line + 1}"
    return (
        f"{printable(file)}{line}: pyiceberg cannot read its configuration ({type(error).__name__}). Write it as plain "
        "YAML, one 'name: value' per line without braces, brackets, anchors or tags, and set no name in the variables "
        "PYICEBERG_* both to a value and to a group of names."
    )
