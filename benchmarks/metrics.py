"""What measuring costs: processor time of an epoch with and without it, in turn: `python benchmarks/metrics.py FOLDER`.

Small batches of a wide table in memory are the worst case: there is little to do per batch that could hide the cost.
"""

from __future__ import annotations

import argparse
import statistics
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tables import wide

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.events import Hooks
from torch_dataloader_utils.executors.drivers import ReportedDriver
from torch_dataloader_utils.iteration.iterator import BatchIterator
from torch_dataloader_utils.iteration.one_pass import END
from torch_dataloader_utils.iteration.passes import Passes


def _unmeasured_next(self: Any) -> Any:
    with self._passes.turn.lock:
        try:
            batch = self._next()
        except StopIteration as error:
            raise RuntimeError("a function passed to the loader raised StopIteration") from error
    if batch is END:
        raise StopIteration
    return batch


def _unmeasured_block(self: Any, shard: int) -> Any:
    return self._driver.next_block(shard)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Read without measuring, within the `with` block."""
    kept = BatchIterator.__next__, ReportedDriver.next_block
    BatchIterator.__next__, ReportedDriver.next_block = _unmeasured_next, _unmeasured_block  # type: ignore[method-assign]
    try:
        yield
    finally:
        BatchIterator.__next__, ReportedDriver.next_block = kept  # type: ignore[method-assign]


def epoch_seconds(loader: Any) -> float:
    """The processor time of one epoch, over all threads."""
    began = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began


def compare(folder: Path, batch_size: int, workers: int | None, pairs: int) -> None:
    """Print the cost of measuring, as a share and per batch: of the fastest epochs, because others were disturbed."""
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), batch_size=batch_size, num_workers=workers, num_ranks=1, rank=0
    )
    epoch_seconds(loader)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs):
        for measured in (True, False) if pair % 2 else (False, True):
            with nullcontext() if measured else unmeasured():
                seconds[measured].append(epoch_seconds(loader))
    measured, plain = (statistics.mean(sorted(seconds[kind])[: max(1, pairs // 5)]) for kind in (True, False))
    print(
        f"batch_size={batch_size:<4} num_workers={workers!s:<5} {measured / plain - 1:+.2%}, "
        f"{(measured - plain) / len(loader) * 1e9:+,.0f} ns per batch of {plain / len(loader) * 1e6:,.1f} us"
    )


class _Instant(BatchIterator):
    """Delivers nothing, at once."""

    def _next(self) -> Any:
        return None


def cost_of_next(calls: int = 300_000) -> float:
    """The seconds that measuring adds to a call of `next`, apart from what the call does."""

    def fastest() -> float:
        passes = Passes(lambda place: None, Hooks())  # type: ignore[arg-type,return-value]
        return min(timeit.repeat(_Instant(passes).__next__, number=calls, repeat=7)) / calls

    measured = fastest()
    with unmeasured():
        return measured - fastest()


def main() -> None:
    """Compare on a wide table of 42 columns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the table is written, 15 MB")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=30)
    given = parser.parse_args()
    folder = given.folder / f"wide-{given.rows}"
    if not folder.exists():
        folder.mkdir(parents=True)
        table = wide(given.rows, np.random.default_rng(0))
        pq.write_table(table, folder / "0.parquet", row_group_size=given.rows // 4)
    print(f"measuring adds {cost_of_next() * 1e9:.0f} ns to each call of next")
    for batch_size, workers in ((32, 0), (32, None), (256, 0), (256, None)):
        compare(folder, batch_size, workers, given.pairs)


if __name__ == "__main__":
    main()
