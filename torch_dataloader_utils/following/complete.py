"""Which files of a folder are complete: by a marker, and on stores that show unfinished ones, by their age."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torch_dataloader_utils.sources.files import FoundFile

# Stores that show an object only once all of it is there. ADLS (abfs) is none of them, because it can append.
WHOLE = frozenset(("s3", "s3a", "gs", "gcs", "az", "hf"))


@dataclass
class Looks:
    """What one process has seen of files that are not read yet.

    No state has any of it: another process only waits longer.

    Attributes:
        settle: seconds for which a file must not have changed.
        whole: whether the store shows whole files only.
        since: name -> size and version, and since when it has them here.
    """

    settle: float
    whole: bool
    since: dict[str, tuple[tuple[int, str], float]] = field(default_factory=dict)

    def settled(self, files: Sequence[FoundFile], now: float) -> list[FoundFile]:
        """The files that have not changed for long enough, by their times, or because they looked the same before.

        By looks alone, a job that often restarts might never read one.

        Args:
            files: all that are not read yet, as listed now.
            now: seconds since 1970.
        """
        if self.whole:
            return list(files)
        before, self.since = self.since, {}
        settled = []
        for file in files:
            own = file.size, file.version
            known, since = before.get(file.path, (own, now))
            since = since if known == own else now
            self.since[file.path] = own, since
            written = now if file.written is None else file.written / 1e9
            if max(now - since, now - written) >= self.settle:
                settled.append(file)
        return settled


def marked(files: Iterable[FoundFile], names: Collection[str], marker: str | None) -> list[FoundFile]:
    """The files in whose folder, or in one above it, there is a marker; all if none is asked for.

    Args:
        files: the files.
        names: all names below the folder, those of markers included.
        marker: the name of a marker.
    """
    if marker is None:
        return list(files)
    folders = {name.rpartition("/")[0] for name in names if name.rpartition("/")[2] == marker}
    return [file for file in files if any(above in folders for above in _above(file.relative))]


def _above(name: str) -> list[str]:
    """The folders of a file below the listed one, which is ""."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
