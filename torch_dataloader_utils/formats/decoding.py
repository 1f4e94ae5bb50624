"""What decoders raise about a broken file, as errors that name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from torch_dataloader_utils.storage import naming


@contextmanager
def decoding(path: str, piece: str) -> Iterator[None]:
    """A context that names file and piece in what is raised, in a wrong size's demand for memory too."""
    with naming(path, piece):
        try:
            yield
        except pa.ArrowMemoryError as error:
            raise ValueError(f"{error}: the piece is too large for this machine, or its sizes are wrong.") from error
