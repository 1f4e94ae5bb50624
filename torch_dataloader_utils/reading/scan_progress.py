"""The progress of a scan while a loader is created: a bar for interactive use, otherwise occasional log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from torch_dataloader_utils.errors import MissingExtraError

_LOG = logging.getLogger("torch_dataloader_utils")


@dataclass(frozen=True)
class Progress:
    """How progress is shown.

    Attributes:
        unit: what is counted, such as "row group".
        work: what the scan does, such as "counting rows".
        show: whether to show a bar (tqdm's, on stderr).
        interval: seconds between log lines, without a bar.
    """

    unit: str
    work: str = "counting rows"
    show: bool = False
    interval: float = 120

    @contextmanager
    def over(self, total: int) -> Iterator[Callable[[int], object]]:
        """A context with a function to call with the number of units just finished, out of `total`.

        Raises:
            MissingExtraError: a bar is requested, but tqdm is not installed.
        """
        if not self.show:
            yield self._logger(total)
            return
        try:
            tqdm = import_module("tqdm.auto").tqdm
        except ImportError as error:
            raise MissingExtraError(
                f"show_progress=True (a bar for {self.work}) needs tqdm: pip install "
                "'torch-dataloader-utils[progress]'."
            ) from error
        with tqdm(total=total, desc=self.work, unit=f" {self.unit}s") as bar:
            yield bar.update

    def _logger(self, total: int) -> Callable[[int], None]:
        done, last = 0, time.monotonic()

        def advance(count: int) -> None:
            nonlocal done, last
            done += count
            if time.monotonic() - last >= self.interval and done < total:
                last = time.monotonic()
                _LOG.info("%s: %d of %d %ss", self.work, done, total, self.unit)

        return advance
