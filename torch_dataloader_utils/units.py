"""Sizes in bytes, parsed from text."""

import re

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown

_FACTORS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def parse_bytes(value: int | str, name: str) -> int:
    """Bytes as a positive int from an int or a text such as `"128MiB"`.

    Args:
        value: bytes, or a number with a unit (KB, MB, GB, TB: powers of 1000; KiB, MiB, GiB, TiB: of 1024).
        name: the option's name, for the error.

    Raises:
        OptionError: the value is not a positive number of bytes.
    """
    size: float = 0
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if match and match[2].upper() in _FACTORS:
            size = float(match[1]) * _FACTORS[match[2].upper()]
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if not 1 <= size < 2**63:
        raise OptionError(f"{name}={shown(value)}: expected a positive number of bytes, such as 134217728 or '128MiB'.")
    return int(size)
