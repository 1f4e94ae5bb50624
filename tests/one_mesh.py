"""A mesh of two processes, as the second of them sees it, without torch.distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class OneMesh:
    """As a DeviceMesh of one dimension."""

    mesh_dim_names: tuple[str, ...] = ("data",)
    ndim: ClassVar = 1
    mesh: ClassVar = np.arange(2)

    def get_coordinate(self) -> list[int]:
        return [1]

    def get_local_rank(self, mesh_dim: Any = None) -> int:
        return 1

    def size(self, mesh_dim: Any = None) -> int:
        return 2

    def get_group(self, mesh_dim: Any = None) -> Any:
        return None
