"""Leaves secrets out of everything that people or programs may keep: messages, notes, causes, logs, reprs, plans.

`redacted` is the one function that does it. It knows what secrets look like (`patterns`) and which ones this process
was given (`known`, filled by `learn`). Our errors and loggers call it themselves, by `printable`, which also
escapes control characters, for people; public calls hide what the errors of others show (`errors`).
"""

from torch_dataloader_utils.redaction.errors import redact_errors, redacted_error, redacts_errors, safe_repr
from torch_dataloader_utils.redaction.known import remember_environment, remember_secrets
from torch_dataloader_utils.redaction.logs import guard_log
from torch_dataloader_utils.redaction.patterns import secrets_of, user_and_password
from torch_dataloader_utils.redaction.text import printable, redacted

__all__ = [
    "printable",
    "redact_errors",
    "redacted",
    "redacted_error",
    "redacts_errors",
    "remember_environment",
    "remember_secrets",
    "safe_repr",
    "secrets_of",
    "user_and_password",
]

guard_log()  # here, because every process imports this room before it can log anything
