"""Which files of a folder were read: a set of hashes, never a place in an order, because files come in any."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import CheckpointMismatchError, OptionError
from torch_dataloader_utils.hashing import MASK, U64, name_hash
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.sources.partitions import partition_order

U32: TypeAlias = npt.NDArray[np.uint32]

_MOST = 1_000_000  # exact names: 12 MB of each state


class RoundFile(NamedTuple):
    """A file as a round reads it.

    Attributes:
        name: its path below the folder; of another entry than the first, with the entry's number before it.
        size: bytes.
        version: as the listing has it.
    """

    name: str
    size: int
    version: str

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.name.rpartition("/")[0]

    @property
    def key(self) -> int:
        """The hash of its name: 64 bits."""
        return name_hash(self.name)

    @property
    def mark(self) -> int:
        """The hash of its content as far as its size and version tell: 32 bits."""
        return name_hash(self.size, self.version) >> 32


@dataclass(frozen=True, eq=False)
class Seen:
    """The files that were read: 12 bytes of each, but of folders that are forgotten only how many and a sum.

    Attributes:
        folders: folder -> the keys of its files in order, uint64 [n], and their marks, uint32 [n].
        forgotten: folder -> how many of its files were read, and the sum of their keys modulo 2**64.
        floor: a folder or name: files up to it count as read.
    """

    folders: Mapping[str, tuple[U64, U32]] = field(default_factory=dict)
    forgotten: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    floor: str = ""

    @property
    def count(self) -> int:
        """How many files were read."""
        return len(self._all[0]) + sum(count for count, _ in self.forgotten.values())

    @property
    def digest(self) -> list[int | str]:
        """How many files were read, the sum of their keys, and the floor: the same however they were read."""
        total = int(self._all[0].sum(dtype=np.uint64)) + sum(total for _, total in self.forgotten.values())
        return [self.count, total & MASK, self.floor]

    @cached_property
    def _all(self) -> tuple[U64, U32]:
        """All keys, in order, and their marks."""
        keys = np.concatenate([np.zeros(0, np.uint64), *(keys for keys, _ in self.folders.values())])
        marks = np.concatenate([np.zeros(0, np.uint32), *(marks for _, marks in self.folders.values())])
        order = np.argsort(keys, kind="stable")
        return keys[order], marks[order]

    def sorted_out(self, files: Sequence[RoundFile]) -> tuple[list[int], list[int], list[int]]:
        """The places of the files that are new, that were read and have changed, and that were read and are the same.

        Files of forgotten folders, and those up to the floor, are in none of these.
        """
        known, marks = self._all
        keys = np.fromiter((file.key for file in files), np.uint64, len(files))
        at = np.searchsorted(known, keys)
        read = np.zeros(len(files), np.bool_)
        inside = np.flatnonzero(at < len(known))
        read[inside] = known[at[inside]] == keys[inside]
        new = [
            place
            for place in np.flatnonzero(~read).tolist()
            if files[place].folder not in self.forgotten and not self.is_below_floor(files[place].name)
        ]
        places = np.flatnonzero(read)
        own = np.fromiter((files[place].mark for place in places.tolist()), np.uint32, len(places))
        changed = marks[at[places]] != own
        return new, places[changed].tolist(), places[~changed].tolist()

    def mark_of(self, file: RoundFile) -> int:
        """The hash of the content with which a file of this name was read."""
        known, marks = self._all
        return int(marks[np.searchsorted(known, np.uint64(file.key))])

    def is_below_floor(self, name: str) -> bool:
        """Whether a file counts as read because its folder or name comes before the floor, or is it."""
        if not self.floor:
            return False
        values, _ = partition_order(f"{self.floor}/" if self._floor_is_folder else self.floor)
        own, _ = partition_order(name)
        if own[: len(values)] != values:
            return own[: len(values)] < values
        return self._floor_is_folder or name <= self.floor or name.startswith(f"{self.floor}/")

    @property
    def _floor_is_folder(self) -> bool:
        """Whether the floor is a folder named key=value, all of whose files count."""
        return "=" in self.floor.rpartition("/")[2]

    def late(self, files: Iterable[RoundFile]) -> dict[str, int]:
        """Forgotten folder -> how many files it has (at least) that were never read; only those that have some."""
        counts: Counter[str] = Counter()
        sums: Counter[str] = Counter()
        for file in files:
            if file.folder in self.forgotten:
                counts[file.folder] += 1
                sums[file.folder] += file.key
        late = {}
        for folder, (count, total) in self.forgotten.items():
            if counts[folder] > count:
                late[folder] = counts[folder] - count
            elif counts[folder] == count and sums[folder] & MASK != total:
                late[folder] = 1  # at least: one came and one went
        return late

    def plus(self, files: Collection[RoundFile], forget: int | None) -> Seen:
        """These and the files of a round.

        Args:
            files: those of the round.
            forget: how many folders, the last ones in order, keep the names of their files; None: all.

        Raises:
            OptionError: there are too many names.
        """
        added: dict[str, dict[int, int]] = {}
        for file in files:
            added.setdefault(file.folder, {})[file.key] = file.mark
        folders = dict(self.folders)
        for folder, marks in added.items():
            before = folders.get(folder)
            both = marks if before is None else dict(zip(*(part.tolist() for part in before), strict=True)) | marks
            keys = sorted(both)
            folders[folder] = np.array(keys, np.uint64), np.array([both[key] for key in keys], np.uint32)
        forgotten = dict(self.forgotten)
        if forget is not None:
            in_order = sorted(folders, key=lambda name: partition_order(f"{name}/"))
            for folder in in_order[: max(len(folders) - forget, 0)]:
                own = folders.pop(folder)[0]
                forgotten[folder] = len(own), int(own.sum(dtype=np.uint64))
        made = Seen(folders, forgotten, self.floor)
        if len(made._all[0]) > _MOST:
            raise OptionError(
                f"follow: more than {_MOST:,} files were read, and each state names all of them, in 12 bytes each: "
                "with Follow(forget=n), only those of the last n folders in order, which alone may still get files."
            )
        return made

    @cached_property
    def text(self) -> str:
        """It, as text for a state."""
        head = {
            "folders": [[name, len(keys)] for name, (keys, _) in self.folders.items()],
            "forgotten": [[name, *of] for name, of in self.forgotten.items()],
            "floor": self.floor,
        }
        packed = zlib.compress(json.dumps(head).encode("utf-8", "surrogatepass"))
        parts = [part.astype(part.dtype.newbyteorder("<")).tobytes() for of in self.folders.values() for part in of]
        return base64.b64encode(len(packed).to_bytes(8, "little") + packed + b"".join(parts)).decode()

    @classmethod
    def of(cls, text: str) -> Seen:
        """What a state has as text; none for "".

        Raises:
            CheckpointMismatchError: it is damaged.
        """
        if not text:
            return cls()
        try:
            data = base64.b64decode(text, validate=True)
            at = 8 + int.from_bytes(data[:8], "little")
            head = json.loads(zlib.decompress(data[8:at]).decode("utf-8", "surrogatepass"))
            folders = {}
            for name, count in head["folders"]:
                keys = np.frombuffer(data, "<u8", count, at).astype(np.uint64)
                marks = np.frombuffer(data, "<u4", count, at + 8 * count).astype(np.uint32)
                folders[str(name)] = keys, marks
                at += 12 * count
            return cls(folders, {str(name): (count, total) for name, count, total in head["forgotten"]}, head["floor"])
        except (ValueError, KeyError, TypeError, zlib.error, AttributeError) as error:
            raise CheckpointMismatchError(
                f"the state is damaged ({type(error).__name__} in the files that were read): expected the result of "
                "loader.state_dict()."
            ) from None
