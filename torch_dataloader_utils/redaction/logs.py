"""Our log records, without secrets and control characters."""

from __future__ import annotations

import logging

from torch_dataloader_utils.redaction.errors import redacted_error
from torch_dataloader_utils.redaction.text import printable


def guard_log() -> None:
    """Make the package's logger leave secrets out of its records. All modules log through it, not through children."""
    logger = logging.getLogger("torch_dataloader_utils")
    if not any(isinstance(each, _WithoutSecrets) for each in logger.filters):
        logger.addFilter(_WithoutSecrets())


class _WithoutSecrets(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrites a record that holds a secret or a control character; keeps all records."""
        if isinstance(record.args, tuple) and any(map(_has_lines, record.args)):
            record.args = tuple(_in_a_line(arg) if _has_lines(arg) else arg for arg in record.args)
        text = record.getMessage()
        clean = printable(text)
        if clean != text:
            record.msg, record.args = clean, None
        if record.exc_info and record.exc_info[1] is not None:
            error = redacted_error(record.exc_info[1]) or record.exc_info[1]
            record.exc_info = type(error), error, record.exc_info[2]
        return True


def _has_lines(arg: object) -> bool:
    return isinstance(arg, str) and ("\n" in arg or "\r" in arg)


def _in_a_line(arg: object) -> str:
    """A text in one line: a name with a newline could look like another record."""
    return str(arg).replace("\r", "\\r").replace("\n", "\\n")
