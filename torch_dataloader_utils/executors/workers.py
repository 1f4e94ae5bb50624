"""Where tasks run: in the calling thread, in decode threads, or in worker processes kept across passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from torch_dataloader_utils.executors.drivers import InlineDriver, PooledDriver
from torch_dataloader_utils.executors.processes import WorkerPool, start_context
from torch_dataloader_utils.executors.threads import ThreadDriver
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile, FileKey, Task
from torch_dataloader_utils.options import WorkerOptions
from torch_dataloader_utils.planning.tasks import parted
from torch_dataloader_utils.reading.blocks import Driver, Scan
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.storage import usable_cores
from torch_dataloader_utils.storage.renewal import can_issue
from torch_dataloader_utils.storage.renewal_desk import RenewalDesk

# Reads in flight hide a remote store's latency, on any number of cores: the fewest and the most threads, and the bytes
# of the tasks that they read at a time. More threads read large tasks no faster, and hold more memory; a thread waits
# for two requests of each small file.
_FEWEST, _MOST, _IN_FLIGHT = 8, 32, 64 << 20
_SAMPLED = 100  # tasks of each shard that show how large tasks are


class Workers:
    """The I/O workers of a loader: opens drivers of tasks, and owns worker processes.

    Args:
        scan: opens readers of tasks (`open(files)`), and knows whether reading is local.
        files: all files, by key.
        worker: the number and kind of workers.

    Attributes:
        files: all files, by key, as the next driver reads them.
    """

    def __init__(self, scan: Scan, files: Mapping[FileKey, DataFile], worker: WorkerOptions) -> None:
        self._scan = scan
        self.files = files
        self._worker = worker
        self._pool: WorkerPool | None = None

    def open(
        self,
        tasks: Sequence[Sequence[Task]],
        at_once: bool = True,
        needed: Sequence[Sequence[float]] = (),
    ) -> Driver:
        """A driver of these tasks, by shard.

        Args:
            tasks: of each shard.
            at_once: whether worker processes start on them at once, or when first requested.
            needed: when each task is needed, relative to the others; empty: the shards advance by as many rows.
        """
        worker = self._worker
        if worker.num_workers == 0:
            return self.inline(tasks)
        if worker.worker_mode == "processes":
            pool = self._workers()
            begin = partial(pool.begin, files=self.files, timeout=worker.timeout, at_once=at_once)
            if len(tasks) <= worker.num_shards:
                return begin(tasks)
            return PooledDriver(begin, tasks, worker.num_shards, needed)
        scan, files = self._scan, self.files
        budget, threads = int(worker.prefetch_bytes), self._threads(tasks)
        return ThreadDriver(lambda: scan.open(files), tasks, budget, threads, worker.timeout, remote=not scan.local)

    def parts(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The tasks, in parts where a transform makes very much of one."""
        row_bytes = self._row_bytes
        return [part for task in tasks for part in parted(task, row_bytes)] if row_bytes else tasks

    @cached_property
    def _row_bytes(self) -> int:
        """Bytes that the transform makes of a row; 0 if unknown. Kept, because each lap of each shard asks."""
        return self._scan.made_bytes if isinstance(self._scan, ScanSpec) else 0

    def inline(self, tasks: Sequence[Sequence[Task]]) -> Driver:
        """A driver that decodes in the calling thread."""
        return InlineDriver(self._scan.open(self.files), tasks)

    def end_pass(self) -> None:
        """End the worker processes, unless they stay for the next pass."""
        if not self._worker.persistent_workers:
            self.close()

    def close(self) -> None:
        """End the worker processes; the next driver starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _workers(self) -> WorkerPool:
        if self._pool is None or self._pool.broken:
            self.close()
            worker = self._worker
            context = start_context(worker.multiprocessing_context)
            budget = int(worker.prefetch_bytes)
            self._scan.prepare()
            desk = None if self._scan.local or not can_issue() else RenewalDesk()
            self._pool = WorkerPool(self._scan.open, worker.num_shards, budget, context, worker.timeout, desk)
        return self._pool

    def _threads(self, tasks: Sequence[Sequence[Task]]) -> int:
        """The number of decode threads; it never changes the order."""
        cores = usable_cores()
        wanted = self._worker.num_workers
        if self._scan.local:
            return cores if wanted is None else min(wanted, cores)
        return max(cores, remote_threads(tasks)) if wanted is None else max(wanted, 1)


def remote_threads(tasks: Sequence[Sequence[Task]]) -> int:
    """The number of threads that read these tasks, by shard, from a remote store: more if tasks are small."""
    sizes = [task.size_bytes for shard in tasks for task in islice(shard, _SAMPLED)]
    return min(max(_FEWEST, _IN_FLIGHT * len(sizes) // max(sum(sizes), 1)), _MOST)
