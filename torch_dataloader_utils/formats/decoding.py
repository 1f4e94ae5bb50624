"""What decoders raise about a broken file, as errors that name it."""

from __future__ import annotations

import pyarrow as pa

from torch_dataloader_utils.storage import Naming


class Decoding(Naming):
    """A context that names file and piece in what is raised, in a wrong size's demand for memory too."""

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, pa.ArrowMemoryError):
            problem = ValueError(f"{error}: the piece is too large for this machine, or its sizes are wrong.")
            problem.__cause__ = error
            error = problem
        super().__exit__(kind, error, trace)
