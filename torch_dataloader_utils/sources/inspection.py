"""Lists files and reads their footers, or takes both from a manifest file; damaged files are errors, or left out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from torch_dataloader_utils.distributed.exchange import Sharers, from_first_rank
from torch_dataloader_utils.distributed.ranks import several_on_node
from torch_dataloader_utils.errors import DamagedFileError
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.model import DataFile, DataFileInfo
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.progress import LOGGED, Progress
from torch_dataloader_utils.sources.damage import FileCheck, SharedCheck, Skipped
from torch_dataloader_utils.sources.file_schema import files_schema
from torch_dataloader_utils.sources.files import AnyPath, FoundFile, find_files, open_entries, regular
from torch_dataloader_utils.sources.footers import each_footer
from torch_dataloader_utils.sources.manifest_file import (
    VERSION,
    Asked,
    Inspected,
    InspectedFile,
    asked_of,
    check_roots,
    kept_inspection,
    name_of,
    new_manifest,
    stale_remedy,
)
from torch_dataloader_utils.sources.node_footers import shared_footers
from torch_dataloader_utils.sources.partitions import partition_values
from torch_dataloader_utils.sources.selection import select_data
from torch_dataloader_utils.sources.skipped import SkippedFile, skipped_file
from torch_dataloader_utils.storage import Storage

_Found: TypeAlias = InspectedFile | SkippedFile


def files_to_read(
    path: AnyPath | Sequence[AnyPath],
    read: ReadOptions,
    sharers: Sharers,
    progress: Progress,
) -> tuple[Storage, Inspected]:
    """The storage and the files; with `on_error="skip"` those that can be decoded, the same on all ranks."""
    if read.on_error == "raise":
        return _inspected(path, read, sharers, progress)
    check = SharedCheck(sharers)
    with check.failing_together():
        storage, inspected = _inspected(path, read, sharers, progress)
        own = _own_damage(storage, inspected, read, check, progress)
    checked = without_damage(inspected, check.joined(_data_files(inspected), own))
    if read.manifest is not None and checked != inspected:
        keep = partial(new_manifest, read.manifest, read, partial(asked_by, path, read), lambda: checked)
        from_first_rank(lambda: len(keep()), sharers, "read the files, once rank 0 has saved the manifest")
    return storage, checked


def sound_files(
    path: AnyPath | Sequence[AnyPath], read: ReadOptions, progress: Progress = LOGGED
) -> tuple[Storage, Inspected]:
    """The storage and the files, from listing and footers; with `on_error="skip"` checked by this process alone."""
    return files_to_read(path, replace(read, manifest=None), Sharers(), progress)


def _own_damage(
    storage: Storage, inspected: Inspected, read: ReadOptions, check: SharedCheck, progress: Progress
) -> Skipped:
    """The damaged files of which this rank knows."""
    form, files = format_named(inspected.format), _data_files(inspected)
    form = form if read.schema is None else form.with_declared_types()
    schema = pa.schema([])
    if inspected.files:
        partitions = partition_values(inspected.files, read)
        schema, _ = files_schema(inspected.files, partitions, read, form.typed, False)
    sound = {place for place, file in enumerate(inspected.found) if getattr(file, "decoded", False)}
    return check.own(files, sound, FileCheck(form, storage, dict(read.format_options or {}), schema, progress))


def _data_files(inspected: Inspected) -> list[DataFile | SkippedFile]:
    return [file.data_file() if isinstance(file, InspectedFile) else file for file in inspected.found]


def without_damage(inspected: Inspected, skipped: Skipped) -> Inspected:
    """The files, all of them decoded, without those that are skipped."""

    def checked(place: int, file: InspectedFile | SkippedFile) -> InspectedFile | SkippedFile:
        if place in skipped:
            return replace(skipped[place], relative=file.relative)
        return replace(file, decoded=True) if isinstance(file, InspectedFile) else file

    return Inspected.of(inspected.format, [checked(place, file) for place, file in enumerate(inspected.found)])


def _inspected(
    path: AnyPath | Sequence[AnyPath],
    read: ReadOptions,
    sharers: Sharers,
    progress: Progress,
) -> tuple[Storage, Inspected]:
    """The storage and the files, from the manifest file, or else from listing and footers."""
    if read.manifest is None:
        return found_and_inspected(path, read, progress)

    def inspect() -> Inspected:
        return found_and_inspected(path, read, progress)[1]

    again = partial(_read_again, path, read, progress)
    inspected = kept_inspection(read.manifest, read, partial(asked_by, path, read), inspect, sharers, again)
    storage, entries = open_entries(path, read)
    check_roots(inspected.found, [inner for _, inner in entries], name_of(read.manifest), storage.local)
    return replace(storage, remedy=stale_remedy(read.manifest)), inspected


def asked_by(path: AnyPath | Sequence[AnyPath], read: ReadOptions) -> Asked:
    """The request that a manifest of these files answers."""
    storage, entries = open_entries(path, read)
    return asked_of(entries, storage, read.format, read.format_options or {})


def found_and_inspected(
    path: AnyPath | Sequence[AnyPath], read: ReadOptions, progress: Progress = LOGGED
) -> tuple[Storage, Inspected]:
    """The storage and the files, from listing and footers."""
    storage, found = find_files(path, read, progress)
    form, files = select_data(storage, found, read.format, progress)
    return storage, inspect_files(storage, form, files, read.format_options, progress, read.on_error)


def inspect_files(
    storage: Storage,
    form: Format,
    files: Sequence[FoundFile],
    format_options: Mapping[str, Any] | None,
    progress: Progress = LOGGED,
    on_error: str = "raise",
) -> Inspected:
    """The files with the layouts and schemas from their footers; damaged ones are errors, or skipped."""
    options = checked_options(form, format_options)

    latest = pa.schema([])

    def inspect(file: FoundFile) -> InspectedFile | SkippedFile:
        nonlocal latest
        info = DataFileInfo(file.path, file.size, version=file.version)
        try:
            layout, schema = form.layout(info, storage, options)
        except DamagedFileError as error:
            if on_error == "raise":
                raise
            return replace(skipped_file(info, 0, str(error)), relative=file.relative)
        known = latest  # several threads replace it
        # Thousands of files share one object, which takes memory once and is merged once.
        latest = schema = known if known.equals(schema, check_metadata=True) else schema
        return InspectedFile(file.path, file.size, file.relative, file.version, layout, schema)

    read = partial(each_footer, storage, inspect, progress=progress)
    name = _shared_name(storage, form, options, files)
    return Inspected.of(form.name, read(files) if name is None else _shared(name, form, files, read))


_MANY = 100  # files from which on ranks of a node share footers


def _shared_name(storage: Storage, form: Format, options: Mapping[str, Any], files: Sequence[FoundFile]) -> str | None:
    """A digest of the listing, under which the ranks of a node share its footers; None if they do not."""
    if len(files) < _MANY or not several_on_node() or not all(file.version for file in files):
        return None
    digest = hashlib.blake2b(repr((VERSION, form.name, sorted(options.items()), storage.protocol)).encode())
    for file in files:
        digest.update(f"{file.path}\0{file.size}\0{file.version}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _shared(
    name: str, form: Format, files: Sequence[FoundFile], read: Callable[[Sequence[FoundFile]], Iterable[_Found]]
) -> Iterable[_Found]:
    """The files with layouts and schemas from footers that the ranks of a node share, under this name."""
    own: dict[int, _Found] = {}  # those that are left out

    def packed() -> Generator[bytes | None]:
        for place, found in enumerate(read(files)):
            if isinstance(found, SkippedFile):
                own[place] = found
            yield form.pack(found.layout, found.schema) if isinstance(found, InspectedFile) else None

    footers = shared_footers(name, len(files), packed)
    if footers is None:
        return read(files)
    lacking = [place for place, footer in enumerate(footers) if footer is None and place not in own]
    own.update(zip(lacking, read([files[place] for place in lacking]), strict=True))
    return [
        own[place] if footer is None else InspectedFile(*_facts(file), *form.unpack(footer))
        for place, (file, footer) in enumerate(zip(files, footers, strict=True))
    ]


def _facts(file: FoundFile) -> tuple[str, int, str, str]:
    return file.path, file.size, file.relative, file.version


def _read_again(path: AnyPath | Sequence[AnyPath], read: ReadOptions, progress: Progress, kept: Inspected) -> Inspected:
    """The content of a manifest, with the files that it leaves out read again where they have changed.

    With `on_error="raise"` they all are, so that the same error is raised as without a manifest.
    """
    storage, entries = open_entries(path, read)
    assert read.manifest is not None
    check_roots(kept.skipped, [inner for _, inner in entries], name_of(read.manifest), storage.local)
    found = {file.place: _now(storage, file) for file in kept.skipped}
    stale = {
        file.place: now
        for file in kept.skipped
        if (now := found[file.place]) is not None and (read.on_error == "raise" or _changed(file, now))
    }
    form = format_named(kept.format)
    inspected = inspect_files(storage, form, list(stale.values()), read.format_options, progress, read.on_error)
    new = dict(zip(stale, inspected.found, strict=True))
    return Inspected.of(
        kept.format,
        [new.get(place, file) for place, file in enumerate(kept.found) if found.get(place, file) is not None],
    )


def _now(storage: Storage, file: SkippedFile) -> FoundFile | None:
    """The file as it is now; None if there is none any more.

    Raises:
        DataNotFoundError: there is a link in its place that leads nowhere.
    """
    stored = storage.look(file.path)
    if stored is None or stored.folder or not regular([stored]):
        return None
    return FoundFile(file.path, stored.size, file.relative, stored.version)


def _changed(file: SkippedFile, now: FoundFile) -> bool:
    return (file.size, file.version) != (now.size, now.version)
