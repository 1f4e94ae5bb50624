"""The public entrance: start here."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Unpack

from torch_dataloader_utils.assembly import open_files
from torch_dataloader_utils.dataset import LoaderDataset
from torch_dataloader_utils.loader import StructuredLoader
from torch_dataloader_utils.options import LoaderOptions, parse_options, signature_with_options

PathLike = str | os.PathLike[str]


class StructuredDataset(LoaderDataset):
    """Files of structured data as batches of tensors."""

    @staticmethod
    def create_dataloader(
        path: PathLike | Sequence[PathLike], **options: Unpack[LoaderOptions]
    ) -> tuple[StructuredLoader, StructuredDataset]:
        """A loader over the files at `path`, and its dataset.

        Example:
            ```python
            loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=1024, shuffle=True)
            for epoch in range(3):
                dataset.set_epoch(epoch)
                for batch in loader:
                    ...  # a dict of column -> tensor of shape [batch_size]
            ```

        Args:
            path: a directory (searched recursively), a glob, a file, or a list of these; any URL that fsspec opens.
            **options: see the options page, or `help(StructuredDataset.create_dataloader)` for names and defaults.

        Raises:
            UnknownOptionError: a keyword that does not exist.
            OptionError: a value that cannot work.
            DataNotFoundError: no data files at `path`.
            FileReadError: a file that cannot be read.
            ColumnNotFoundError: a column that no file has.
            SchemaMismatchError: files disagree about a column's type.
            EmptyDatasetError: the files hold no rows.
        """
        parsed = parse_options(options)
        dataset = StructuredDataset(open_files(path, parsed), parsed)
        return StructuredLoader(dataset, parsed), dataset


_PATH = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=PathLike | Sequence[PathLike])
# One declaration of the options serves help(), IDEs and the docs.
StructuredDataset.create_dataloader.__signature__ = signature_with_options(_PATH)  # type: ignore[attr-defined]
