"""`lists=`: the form of lists of varying length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.values import ByColumn, Value, setting, values, whole

_MOST_MULTIPLE = 2**20


class Padded(Value):
    """Pads the lists of a batch to the length of its longest one; their own lengths are beside them.

    Raises:
        OptionError: a field cannot have this value.
    """

    value: float | None = setting(
        default=None,
        check=values("a number or None", lambda value: value is None or isinstance(value, (int, float))),
        doc='the fill value of shorter lists; None: 0, and -100 for integers of a column "labels"',
        kw_only=False,
    )
    multiple: int = setting(
        default=1, check=whole(1, _MOST_MULTIPLE), doc="the length is rounded up to a multiple of this, such as 8"
    )


Lists: TypeAlias = Literal["ragged", "nested", "padded"] | Padded
ListsLike: TypeAlias = Lists | Mapping[str, Lists | Mapping[str, Any]]

check_lists = ByColumn(("ragged", "nested", "padded"), Padded)


def length_multiple(given: Any) -> int:
    """What the lengths of all padded lists are a multiple of."""
    forms = given.values() if isinstance(given, Mapping) else [given]
    return math.lcm(*(form.multiple for form in forms if isinstance(form, Padded)))
