"""A folder that grows: each round is what is complete there and was in no round before it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import time
from typing import Any, TypeAlias

from torch_dataloader_utils.distributed.ranks import resolve_world
from torch_dataloader_utils.errors import (
    DamagedFileError,
    DataNotFoundError,
    FileChangedError,
    OptionError,
    SchemaMismatchError,
)
from torch_dataloader_utils.events import Event, UnreadFilesEvent
from torch_dataloader_utils.following.complete import WHOLE, Looks, marked
from torch_dataloader_utils.following.replay import chosen_share
from torch_dataloader_utils.following.round_log import RoundLog
from torch_dataloader_utils.following.rounds import (
    Round,
    RoundCursor,
    Shape,
    cursor_of,
    in_words,
    next_files,
    replay_key,
    replayed,
    round_of,
)
from torch_dataloader_utils.following.seen import RoundFile, Seen
from torch_dataloader_utils.following.waiting import looks
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.hashing import name_hash
from torch_dataloader_utils.model import DataFile, DataFileInfo
from torch_dataloader_utils.options import Follow, Hive, Options, ReadOptions, progress_of
from torch_dataloader_utils.printing import listed, plural
from torch_dataloader_utils.redaction import printable, redacted
from torch_dataloader_utils.sources.agreement import sharers_of
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, chosen_file
from torch_dataloader_utils.sources.file_schema import files_schema
from torch_dataloader_utils.sources.files import FoundFile, base_of, find_below, lists, open_entries
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.sources.inspection import sound_inspection
from torch_dataloader_utils.sources.manifest import FileManifest, manifest_of
from torch_dataloader_utils.sources.manifest_file import Inspected, InspectedFile
from torch_dataloader_utils.sources.partitions import partition_values
from torch_dataloader_utils.sources.selection import is_unfinished, select_data
from torch_dataloader_utils.sources.skipped import SkippedFile, skipped_file
from torch_dataloader_utils.sources.tables import SnapshotCursor
from torch_dataloader_utils.storage import Storage
from torch_dataloader_utils.values import url_of

_LOG = logging.getLogger("torch_dataloader_utils")
_SHOWN = 5  # names in a message
_REMEDY = (
    "Files of a folder that is followed must stay as they are until they are read; with on_error='skip', a pass leaves "
    "out those that are gone when it begins."
)


Key: TypeAlias = tuple[str, int, str]


def key_of(file: FoundFile) -> Key:
    """What a file and its content are known by."""
    return file.path, file.size, file.version


def check_agreement(follow: Follow, options: Options) -> None:
    """Check that several ranks can agree on what each pass reads.

    Raises:
        OptionError: they have neither a process group nor a folder of rounds.
    """
    shard = options.shard
    world = resolve_world(shard.num_ranks, shard.rank, None if shard.peers is None else shard.peers.world)
    if world.num_ranks > 1 and follow.rounds is None and sharers_of(options).peers is None:
        raise OptionError(
            f"follow={follow!r} with num_ranks={world.num_ranks}: all ranks must read the same files, but "
            "torch.distributed is not initialised: initialise it before the loader is created, or name a folder that "
            "all ranks see, by Follow(rounds='s3://bucket/rounds')."
        )


@dataclass(frozen=True)
class FolderSnapshot:
    """The files of one round; picklable.

    Attributes:
        name: where they are, for messages.
        cursor: selects the same round again.
        storage: where they are.
        files: the files that are new.
        again: older files of which some rows are read again.
        follow: how the folder is followed.
        before: how many files were read before the round.
        known: files whose footers were read when the round was decided.
    """

    name: str
    cursor: RoundCursor
    storage: Storage
    files: tuple[FoundFile, ...]
    again: tuple[FoundFile, ...]
    follow: Follow
    before: int
    known: Mapping[Key, InspectedFile] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "known": {}}

    @property
    def in_words(self) -> str:
        """Which round it is."""
        return in_words(round_of(self.cursor), self.before)

    @property
    def replay_in_words(self) -> str:
        """Which older rows are read again beside those of the new files; "" if none are."""
        if not self.follow.replay:
            return ""
        files = plural(len(self.again), "file")
        return f"{self.follow.replay:g} bytes of older files beside each new one: rows of {files}"

    def manifest(self, options: Options) -> FileManifest:
        """The manifest of the files, like that of any other source.

        Raises:
            FileChangedError: a file has changed or disappeared since the round was decided.
            SchemaMismatchError: a file does not have the columns of the first files.
        """
        shape = Shape.of(str(self.cursor.schema))
        read = as_shaped(options.read, shape)
        inspect = partial(self._inspected, read, shape, options)
        storage, inspected = sound_inspection(inspect, read, sharers_of(options), progress_of(options))
        partitions = partition_values(inspected.files, read)
        _check_keys(inspected.files, partitions, shape)
        made = manifest_of(storage, inspected, partitions, read, deleted={})
        # Without a file, nothing shows by what those to come are partitioned.
        made = replace(made, origin=str(self.cursor), decided=made.decided and bool(inspected.files))
        return self._with_replay(made) if self.again else made

    def _inspected(self, read: ReadOptions, shape: Shape, options: Options) -> tuple[Storage, Inspected]:
        form = format_named(shape.format)
        given = checked_options(form, read.format_options)

        def inspect(file: FoundFile) -> InspectedFile | SkippedFile:
            try:
                return self.known.get(key_of(file)) or inspected(self.storage, form, given, file)
            except (DamagedFileError, FileChangedError) as error:
                if read.on_error == "raise":
                    raise
                skipped = skipped_file(DataFileInfo(file.path, file.size, version=file.version), 0, str(error))
                return replace(skipped, relative=file.relative)

        files = read_footers(self.storage, inspect, [*self.files, *self.again], progress_of(options))
        return self.storage, Inspected.of(form.name, files)

    def _with_replay(self, made: FileManifest) -> FileManifest:
        """The manifest with only those rows of older files that are read again."""
        quota = self.follow.replay * sum(file.size for file in self.files)
        number = round_of(self.cursor).number
        choice = chosen_share(quota, sum(file.size for file in self.again), replay_key(number, self.follow))
        if choice is None:
            return made
        names = {file.path: file.relative for file in self.again}

        def chosen(file: DataFile) -> DataFile:
            name = names.get(file.info.path)
            return file if name is None else chosen_file(file, choice, name_hash(name))

        files = tuple(file for file in map(chosen, made.files) if file.layout.segments)
        origin = f"{made.origin}, replay of {len(self.again)} files, {choice}"
        return replace(made, files=files, opener=LiveOpener(made.opener), origin=origin)


def as_shaped(read: ReadOptions, shape: Shape) -> ReadOptions:
    """What is read of later files: columns and format are those of the first, unless the user says which."""
    keys = Hive() if read.partitioning == "auto" else read.partitioning
    return replace(
        read,
        schema=shape.schema if read.schema is None else read.schema,
        partitioning=keys if shape.keys else None,
        format=shape.format,
    )


def _check_keys(files: Sequence[FoundFile], values: Sequence[Mapping[str, Any]], shape: Shape) -> None:
    """Check that files lie in folders of the same keys as the first ones: their columns would be null, or missing."""
    for file, own in zip(files[:1], values[:1], strict=True):  # all of a round have the same
        if set(shape.keys) - own.keys():
            raise SchemaMismatchError(
                f"{printable(file.path)} lies in folders with the keys {list(own)}, but the first files have the "
                f"columns {list(shape.keys)} from their folders: move it, or create the loader with partitioning=None."
            )


def inspected(storage: Storage, form: Format, options: Mapping[str, Any], file: FoundFile) -> InspectedFile:
    """A file with the layout and schema from its footer."""
    layout, schema = form.layout(DataFileInfo(file.path, file.size, version=file.version), storage, options)
    return InspectedFile(file.path, file.size, file.relative, file.version, layout, schema)


class FolderSource:
    """A folder whose rounds are decided one after another; stays in the process that creates the loader.

    Args:
        path: a folder or glob, or a list of these.
        follow: how it is followed.
        read: the access to it.
    """

    def __init__(self, path: Any, follow: Follow, read: ReadOptions) -> None:
        self._path, self._follow = path, follow
        self._looks: Looks | None = None
        self._form: Format | None = None
        self._known: dict[Key, InspectedFile] = {}
        self._refused: set[RoundFile] = set()  # those that are no data, or whose end cannot be parsed
        self._told: set[RoundFile | tuple[str, int]] = set()
        self._report: Callable[[Event], object] = lambda event: None
        self._read: tuple[RoundCursor, Seen] | None = None  # the last round that was read, and all read with it
        options = read.storage_options if read.filesystem is None else None
        self._log = None if follow.rounds is None else RoundLog.at(follow.rounds, options)
        if self._log is not None:
            self._check_apart(self._log, read)

    @property
    def name(self) -> str:
        """The paths, for messages."""
        entries = self._path if isinstance(self._path, (list, tuple)) else [self._path]
        return ", ".join(redacted(url_of(entry)) for entry in entries)

    @property
    def pinned(self) -> str | None:
        """None: it always moves."""
        return None

    def _check_apart(self, log: RoundLog, read: ReadOptions) -> None:
        """Check that the files of rounds are not among those that are followed.

        Raises:
            OptionError: they are.
        """
        storage, entries = open_entries(self._path, read)
        if storage.protocol == log.storage.protocol and any(lists(inner, log.file(0)) for _, inner in entries):
            raise OptionError(
                f"follow: rounds={printable(log.folder)!r} lies in the folder that is followed, so its files would be "
                "read as data: name a folder beside it, or one whose name begins with '_'."
            )

    def newest(self, options: Options) -> SnapshotCursor:
        """Raises an OptionError: a folder has no newest position."""
        raise OptionError(
            "advance(): with follow=True, each pass of a folder reads what is new by itself: leave the call out."
        )

    def snapshot(self, cursor: SnapshotCursor | None, options: Options) -> FolderSnapshot:
        """The files of a round; without a cursor, of the first one, which is decided by all ranks together.

        Raises:
            DataNotFoundError: there is no complete file for the first one, and time is over.
            CheckpointMismatchError: the cursor is damaged.
        """
        there = self._first(options) if cursor is None else cursor
        decided = round_of(there)
        assert isinstance(there, RoundCursor)
        storage, entries = open_entries(self._path, options.read)
        bases = [base_of(inner) for _, inner in entries]
        return FolderSnapshot(
            name=self.name,
            cursor=there,
            storage=replace(storage, remedy=_REMEDY),
            files=tuple(found_file(file, bases) for file in decided.files),
            again=tuple(found_file(file, bases) for file in decided.again),
            follow=self._follow,
            before=Seen.of(there.seen).count,
            known=self._known,
        )

    def added(self, read: SnapshotCursor, options: Options, *, last: bool) -> SnapshotCursor:
        """The round after one that was read, if it has files or `last`; else that one.

        Raises:
            FileChangedError: a file that was read has changed, unless that is to be ignored.
        """
        seen, number, shape = self._seen_with(read), round_of(read).number + 1, str(read.schema)
        found = None if self._log is None else self._log.decided(number, seen)
        if found is None:
            proposed = self._proposed(number, seen, options, Shape.of(shape).format)
            if not proposed.files and not last:
                return read
            found = (proposed, shape) if self._log is None else self._log.agree(proposed, seen, shape)
        return cursor_of(found[0], seen, found[1])

    def report_to(self, callback: Callable[[Event], object]) -> None:
        """See `GrowingSource`."""
        self._report = callback

    def finished(self, read: SnapshotCursor) -> SnapshotCursor:
        """The same round without its files, which are among those that were read."""
        return cursor_of(Round(round_of(read).number, ()), self._seen_with(read), str(read.schema))

    def _seen_with(self, read: SnapshotCursor) -> Seen:
        """All files that were read once this round was."""
        assert isinstance(read, RoundCursor)
        if self._read is None or self._read[0] != read:
            self._read = read, Seen.of(read.seen).plus(round_of(read).files, self._follow.forget)
        return self._read[1]

    def _first(self, options: Options) -> RoundCursor:
        seen = Seen(floor=str(self._follow.after or "").strip("/"))

        def look(last: bool) -> RoundCursor | None:
            found = None if self._log is None else self._log.decided(0, seen)
            if found is None:
                proposed = self._proposed(0, seen, options, options.read.format)
                # Where nothing is new, what lies before the floor has the columns, too.
                some = proposed.files or self._proposed(0, Seen(), options, options.read.format, most=1).files
                if not some:
                    if last:
                        raise self._none(options)
                    return None
                shape = self._shape(some, options).text
                found = (proposed, shape) if self._log is None else self._log.agree(proposed, seen, shape)
            return cursor_of(found[0], seen, found[1])

        for found, _ in looks(
            look, self._follow, sharers_of(options), lambda: False, f"a complete file in {self.name}"
        ):
            if found is not None:
                return found
        raise AssertionError("the last look finds a file, or raises an error")

    def _proposed(self, number: int, seen: Seen, options: Options, form: str | None, most: int | None = None) -> Round:
        """The next round, as this process sees the folder now."""
        storage, found = self._listed(options.read, first=number == 0)
        files = list(found)
        new, changed, same = seen.sorted_out(files)
        self._report_changed([files[place] for place in changed], seen)
        self._report_late(seen.late(files))
        fresh = self._complete(storage, {files[place]: found[files[place]] for place in new})
        follow = self._follow if most is None else self._follow.replace(max_files=most)
        taken = next_files(self._data(storage, fresh, form), follow)
        taken = self._sound(storage, taken, found, options)
        if not follow.replay:
            return Round(number, taken)
        older = [files[place] for place in same] + [file for file in files if seen.is_below_floor(file.name)]
        return Round(number, taken, replayed(number, taken, older, follow))

    def _listed(self, read: ReadOptions, *, first: bool) -> tuple[Storage, dict[RoundFile, FoundFile]]:
        """All files whose names are those of finished data, with a marker if they need one."""
        storage, entries = open_entries(self._path, read)
        found: dict[RoundFile, FoundFile] = {}
        for place, (_, inner) in enumerate(entries):
            below = find_below(storage, inner)
            if below is None:
                if first and storage.local:  # an object store has no folder without an object
                    raise DataNotFoundError(f"{printable(inner)}: there is no such folder to follow: create it first.")
                continue
            finished = [file for file in below.files if not is_unfinished(file)]
            for file in marked(finished, below.names, self._follow.marker):
                found[round_file(file, place)] = file
        return storage, found

    def _complete(self, storage: Storage, new: Mapping[RoundFile, FoundFile]) -> dict[RoundFile, FoundFile]:
        if self._looks is None:
            self._looks = Looks(self._follow.settle, storage.protocol in WHOLE)
        settled = set(self._looks.settled(list(new.values()), time()))
        return {file: own for file, own in new.items() if own in settled and file not in self._refused}

    def _data(self, storage: Storage, fresh: Mapping[RoundFile, FoundFile], form: str | None) -> list[RoundFile]:
        """Those of these files that are data; the others are not looked at again."""
        if not fresh:
            return []
        try:
            entry, data = select_data(storage, list(fresh.values()), form)
        except DataNotFoundError:
            entry, data = None, []
        self._form = entry or self._form
        kept = set(data)
        self._refused |= {file for file, own in fresh.items() if own not in kept}
        return [file for file, own in fresh.items() if own in kept]

    def _sound(
        self, storage: Storage, files: Sequence[RoundFile], found: Mapping[RoundFile, FoundFile], options: Options
    ) -> tuple[RoundFile, ...]:
        """Those of these files whose end can be parsed, on stores that show unfinished files."""
        form = self._form
        if form is None or form.described != "footer" or storage.protocol in WHOLE:
            return tuple(files)
        given = checked_options(form, options.read.format_options)
        # Kept for the round's own manifest.
        keys = [key_of(found[file]) for file in files]
        self._known = {key: self._known[key] for key in keys if key in self._known}

        def parsed(file: RoundFile) -> str | None:
            try:
                self._inspected(storage, form, given, found[file])
            except DamagedFileError as error:
                return str(error)
            except FileChangedError:
                return ""  # it is not finished
            return None

        problems = dict(zip(files, read_footers(storage, parsed, files, progress_of(options)), strict=True))
        for file, problem in problems.items():
            if problem:
                self._refused.add(file)
                _LOG.warning("a file that should be complete is not, so it is left out until it changes: %s", problem)
        return tuple(file for file in files if problems[file] is None)

    def _shape(self, files: Sequence[RoundFile], options: Options) -> Shape:
        """The columns of the first files."""
        storage, entries = open_entries(self._path, options.read)
        form = self._form
        assert form is not None, "files were found, so their format is known"
        given = checked_options(form, options.read.format_options)
        bases = [base_of(inner) for _, inner in entries]
        skips = options.read.on_error == "skip"

        def inspect(file: FoundFile) -> InspectedFile | None:
            try:
                return self._inspected(storage, form, given, file)
            except (DamagedFileError, FileChangedError):
                if not skips:
                    raise
                return None

        read = read_footers(storage, inspect, [found_file(file, bases) for file in files], progress_of(options))
        own = [file for file in read if file is not None]
        typed = form.typed if options.read.schema is None else form.with_declared_types().typed
        schema, keys = files_schema(own, partition_values(own, options.read), options.read, typed, False)
        return Shape(schema, keys, form.name)

    def _inspected(self, storage: Storage, form: Format, options: Mapping[str, Any], file: FoundFile) -> InspectedFile:
        """A file with what its footer says, which is read once."""
        key = key_of(file)
        if key not in self._known:
            self._known[key] = inspected(storage, form, options, file)
        return self._known[key]

    def _report_changed(self, files: Sequence[RoundFile], seen: Seen) -> None:
        """Raise an error, or log, that files have changed since they were read.

        Raises:
            FileChangedError: that is not to be ignored.
        """
        if files and self._follow.changed == "error":
            first, more = files[0], f", and {len(files) - 1} more" if len(files) > 1 else ""
            raise FileChangedError(
                f"{printable(first.name)} in {self.name} was read in an earlier pass and has changed since{more}: it "
                f"is now {first.size} bytes, {first.version or 'of no known version'} (digest {first.mark:08x}; it was "
                f"{seen.mark_of(first):08x}). What follows must be added in new files: restore the file, or leave "
                "changes unread by Follow(changed='ignore')."
            )
        news = [file.name for file in files if file not in self._told]
        self._told |= set(files)
        if news:
            _LOG.warning(
                "%d file(s) have changed since they were read, and are not read again: %s",
                len(news), listed(news, _SHOWN, printable),
            )  # fmt: skip
            self._report(UnreadFilesEvent("changed", tuple(news), len(news)))

    def _report_late(self, late: Mapping[str, int]) -> None:
        """Log that files came to folders that are forgotten."""
        news = {folder: count for folder, count in late.items() if (folder, count) not in self._told}
        self._told |= set(late.items())
        if news:
            _LOG.warning(
                "files were added to folders that are no longer looked at: %s. Follow(forget=) says how many folders "
                "may still get files.",
                listed((f"{folder} ({count})" for folder, count in news.items()), _SHOWN, printable),
            )  # fmt: skip
        for folder, count in news.items():
            self._report(UnreadFilesEvent("late", (folder,), count))

    def _none(self, options: Options) -> DataNotFoundError:
        """The error for a folder without a complete file."""
        _, found = self._listed(options.read, first=True)
        marker = "" if self._follow.marker is None else f" beside or below a file {self._follow.marker!r}"
        settle = f"unchanged for {self._follow.settle:g} seconds"
        return DataNotFoundError(
            f"{self.name}: no complete data file{marker} to take the columns from ({len(found)} found, none of them "
            f"data that is {settle}): add one, or wait for it by Follow(wait=None)."
        )


def round_file(file: FoundFile, place: int) -> RoundFile:
    """A file that was found, as a round names it; `place` is the number of its entry among several."""
    return RoundFile(f"//{place}/{file.relative}" if place else file.relative, file.size, file.version)


def found_file(file: RoundFile, bases: Sequence[str]) -> FoundFile:
    """The file of a round, where the folder is now; `bases` has the folder of each entry."""
    place, relative = 0, file.name
    if relative.startswith("//"):
        number, _, relative = relative[2:].partition("/")
        place = int(number)
    return FoundFile(bases[min(place, len(bases) - 1)] + relative, file.size, relative, file.version)
