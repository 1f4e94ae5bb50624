"""A folder of rounds: one small file for each pass, which whoever comes first creates, and all ranks read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.errors import CheckpointMismatchError, FileReadError, OptionError
from torch_dataloader_utils.following.rounds import Round, files_of
from torch_dataloader_utils.following.seen import Seen
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Naming, Storage, open_storage

# Stores that can put an object on the condition that there is none of its name.
_EXCLUSIVE = frozenset(("file", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"))


@dataclass
class RoundLog:
    """The rounds of all ranks, in files that are created once and whole.

    Attributes:
        folder: as given, for messages.
        storage: where it is.
        path: its path there.
        tested: whether the store has refused to create a file a second time.
    """

    folder: str
    storage: Storage
    path: str
    tested: bool = False

    @classmethod
    def at(cls, folder: Any, storage_options: Mapping[str, Any] | None) -> RoundLog:
        """The log in a folder.

        Raises:
            OptionError: its store cannot create a file on the condition that there is none.
        """
        storage, path = open_storage(folder, storage_options)
        if storage.protocol not in _EXCLUSIVE:
            raise OptionError(
                f"follow: rounds={printable(str(folder))!r}: {storage.protocol}:// cannot create a file only "
                f"if there is none yet: use a folder on one of {', '.join(sorted(_EXCLUSIVE))}."
            )
        return cls(str(folder), storage, path.rstrip("/"))

    def decided(self, number: int, seen: Seen) -> tuple[Round, str] | None:
        """The round of this number and the text of its shape; None while nobody has decided it.

        Args:
            number: of the round.
            seen: the files of earlier rounds.

        Raises:
            CheckpointMismatchError: it was decided after other files.
            FileReadError: the file of the round cannot be read.
        """
        path = self.file(number)
        if self.storage.look(path) is None:
            return None
        with Naming(path), self.storage.open(path) as source:
            data = source.read()
        try:
            values = json.loads(data)
            found = Round(number, files_of(values["files"]), files_of(values["again"]))
            before, shape = values["before"], str(values["shape"])
        except (ValueError, KeyError, TypeError) as error:
            raise FileReadError(
                f"{printable(path)} is not a file of rounds ({type(error).__name__}): use an empty folder as rounds=."
            ) from error
        if before != seen.digest:
            raise CheckpointMismatchError(
                f"{printable(path)}: round {number} was decided after {before[0]} file(s), but this loader has read "
                f"{seen.count} or others: load the state that was saved with it, or use another folder as rounds=."
            )
        return found, shape

    def agree(self, proposed: Round, seen: Seen, shape: str) -> tuple[Round, str]:
        """The round of this number: the one proposed, unless another rank was first. It is there when this returns.

        Raises:
            OptionError: the store creates a file twice.
        """
        path = self.file(proposed.number)
        values = {"files": proposed.files, "again": proposed.again, "before": seen.digest, "shape": shape}
        data = json.dumps({"round": proposed.number, **values}).encode()
        # The same bytes: if the store takes them again, nothing is lost but the order in which ranks come.
        if self.storage.create(path, data) and not self.tested and self.storage.create(path, data):
            raise OptionError(
                f"follow: rounds={printable(self.folder)!r}: the store overwrites a file that is to be created only "
                "if there is none, so ranks could read different rows: use a folder on another store, or "
                "initialise a process group instead."
            )
        self.tested = True
        found = self.decided(proposed.number, seen)
        if found is None:
            raise FileReadError(f"{printable(path)} has disappeared: do not remove files of rounds while ranks run.")
        return found

    def file(self, number: int) -> str:
        """The path of the file of a round."""
        return f"{self.path}/{number:08d}.json"
