"""The options that say how lists are padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_dataloader_utils.values import Checked, mapping, option, whole


@dataclass(frozen=True, kw_only=True)
class PadOptions(Checked):
    """What fills padded lists up, and to which length."""

    pad_values: Mapping[str, float] | None = option(
        None, mapping("column -> number"), doc='the padding of lists="padded", else 0: {"labels": -100}'
    )
    pad_multiple: int = option(1, whole(1, 2**20), doc='lists="padded": the length is a multiple of this, such as 8')
