"""Rounds: the files that one pass reads, a list that is decided once, before its first row is read."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.following.replay import older_files
from torch_dataloader_utils.following.seen import RoundFile, Seen
from torch_dataloader_utils.hashing import name_hash
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.options import Follow
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.sources.partitions import partition_order
from torch_dataloader_utils.sources.tables import SnapshotCursor


@dataclass(frozen=True)
class Shape:
    """What all rounds have in common, because a model reads them all: decided with the first file.

    Attributes:
        schema: the columns.
        keys: those of them whose values are in folder names.
        format: the name of the format.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    format: str

    @cached_property
    def text(self) -> str:
        """It, as text for a state."""
        schema = base64.b64encode(self.schema.serialize()).decode()
        return json.dumps({"format": self.format, "keys": self.keys, "schema": schema})

    @classmethod
    def of(cls, text: str) -> Shape:
        """What a state has as text.

        Raises:
            CheckpointMismatchError: it is damaged.
        """
        try:
            values = json.loads(text)
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(values["schema"], validate=True)))
            return cls(schema, tuple(values["keys"]), values["format"])
        except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
            raise damaged("its columns", error) from None


@dataclass(frozen=True)
class Round:
    """The files of a pass.

    Attributes:
        number: counts the passes over the folder, from 0.
        files: those that no round before it has.
        again: those of earlier rounds that are read again, some of their rows.
    """

    number: int
    files: tuple[RoundFile, ...]
    again: tuple[RoundFile, ...] = ()


@dataclass(frozen=True)
class RoundCursor(SnapshotCursor):
    """A round as a loader's state has it: `end` is its number, and `schema` the text of a `Shape`.

    Attributes:
        files: its files, as text.
        seen: those of the rounds before it, as text.
    """

    files: str = field(default="", repr=False)
    seen: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"round {self.end}"

    @property
    def place(self) -> str:
        """How messages name where it ends."""
        return str(self)


def cursor_of(decided: Round, seen: Seen, shape: str) -> RoundCursor:
    """The round as a state has it.

    Args:
        decided: the round.
        seen: the files of earlier rounds.
        shape: the text of the shape.
    """
    text = json.dumps([decided.files, decided.again])
    packed = base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"))).decode()
    return RoundCursor(decided.number, None, shape, packed, seen.text)


def round_of(cursor: SnapshotCursor) -> Round:
    """The round of a state.

    Raises:
        CheckpointMismatchError: it is none, or damaged.
    """
    if not isinstance(cursor, RoundCursor) or not isinstance(cursor.end, int) or not isinstance(cursor.schema, str):
        raise CheckpointMismatchError(f"the state is not that of a folder that is followed ({cursor}).")
    try:
        text = zlib.decompress(base64.b64decode(cursor.files, validate=True)).decode("utf-8", "surrogatepass")
        files, again = json.loads(text)
        return Round(cursor.end, files_of(files), files_of(again))
    except (ValueError, TypeError, zlib.error) as error:
        raise damaged("the files of its round", error) from None


def files_of(values: Sequence[Sequence[Any]]) -> tuple[RoundFile, ...]:
    """Files, from lists of their name, size and version."""
    return tuple(RoundFile(str(name), int(size), str(version)) for name, size, version in values)


def damaged(what: str, error: Exception) -> CheckpointMismatchError:
    """The error for a part of a state that cannot be read."""
    return CheckpointMismatchError(
        f"the state is damaged ({type(error).__name__} in {what}): expected the result of loader.state_dict()."
    )


def next_files(
    fresh: Sequence[RoundFile], follow: Follow, sound: Callable[[RoundFile], bool] = lambda file: True
) -> tuple[RoundFile, ...]:
    """The files of the next round: of complete ones that are new, in order, as many as a pass may have.

    Args:
        fresh: the new ones.
        follow: how many there may be.
        sound: whether the end of a file can be parsed, where its format has such an end.
    """
    taken = sorted(fresh, key=lambda file: partition_order(file.name))[: follow.max_files]
    if follow.max_bytes is not None:
        most = int(follow.max_bytes)
        taken = [
            file for file, end in zip(taken, accumulate(file.size for file in taken), strict=True) if end <= most
        ] or taken[:1]
    return tuple(file for file in taken if sound(file))


def replayed(
    number: int, files: Sequence[RoundFile], older: Sequence[RoundFile], follow: Follow
) -> tuple[RoundFile, ...]:
    """The older files of which a round reads some rows again, drawn by hash: together as large as is asked for."""
    quota = follow.replay * sum(file.size for file in files)
    key = replay_key(number, follow)
    return tuple(older_files(quota, older, lambda file: name_hash("replay", key, file.name), lambda file: file.size))


def replay_key(number: int, follow: Follow) -> int:
    """What makes the draw of a round another than those of others."""
    return name_hash(follow.seed, number)


def in_words(decided: Round, before: int) -> str:
    """Which round it is, for people."""
    return f"round {decided.number}: {plural(len(decided.files), 'new file')}, after {plural(before, 'file')} before it"
