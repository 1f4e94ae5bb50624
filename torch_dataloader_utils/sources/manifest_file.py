"""The manifest file: the first run or rank creates it, all others read it instead of listing files and footers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsspec.utils import stringify_path

from torch_dataloader_utils.distributed.exchange import Sharers, from_first_rank
from torch_dataloader_utils.errors import DataLoaderUtilsError, OptionError, leave_out, use
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import AnyPath, lists
from torch_dataloader_utils.sources.manifest_bytes import (
    Asked,
    Inspected,
    leaves_out,
    pack_manifest,
    reject_secrets,
    unpack_manifest,
)
from torch_dataloader_utils.storage import Naming, Storage, open_storage, printable


def asked_of(
    entries: Sequence[tuple[AnyPath, str]], storage: Storage, form: str | None, format_options: Mapping[str, Any]
) -> Asked:
    """The request that these entries and options make.

    Args:
        entries: the entries of `path`, each as given and as a path in the storage.
        storage: where they are.
        form: `format` as given.
        format_options: as given.

    Raises:
        OptionError: an entry must not be stored, because it is a signed link or contains a password.
    """
    path = tuple(_spelled(entry, inner, storage) for entry, inner in entries)
    reject_secrets(path)
    return Asked(path, form, dict(format_options))


def _spelled(given: AnyPath, inner: str, storage: Storage) -> str:
    """The path in absolute form: a local path, or a URL with its protocol."""
    url = str(stringify_path(given))
    if storage.local:
        return inner
    return (url if "://" in url else f"{storage.protocol}://{url.lstrip('/')}").rstrip("/")


def kept_inspection(
    manifest: AnyPath,
    read: ReadOptions,
    ask: Callable[[], Asked],
    inspect: Callable[[], Inspected],
    sharers: Sharers | None = None,
    again: Callable[[Inspected], Inspected] = lambda kept: kept,
) -> Inspected:
    """The content of the file `manifest`; if it does not exist, the result of `inspect`, which is then saved there.

    With a process group, only rank 0 does this and sends the result to the others; an error is raised on all ranks.

    Args:
        manifest: path or URL of the manifest.
        read: storage options or filesystem, as for the data; a `file://` path is always on the local disk.
        ask: returns the request that `inspect` answers.
        inspect: lists the files and reads their footers.
        sharers: the ranks that share it; None for this process alone.
        again: returns the content of a manifest that lists damaged files, after those that have changed were read
            again. With `on_error="skip"` the result is saved.

    Raises:
        FileReadError: the file is not a manifest, has another version, or is damaged.
        OptionError: the manifest is for another request, lies among the data, or cannot be saved.
    """

    def loaded_or_made() -> bytes:
        storage, path = _opened(manifest, read)
        data = read_manifest(storage, path)
        if data is None:
            return new_manifest(manifest, read, ask, inspect)
        if not leaves_out(data):
            return data
        kept = unpack_manifest(data, ask(), name)
        now = again(kept)
        if now == kept:
            return data
        return new_manifest(manifest, read, ask, lambda: now) if read.on_error == "skip" else pack_manifest(now, ask())

    name = name_of(manifest)
    # Everything that can fail runs inside the collective or after it, so no rank leaves the others waiting.
    data = from_first_rank(loaded_or_made, sharers or Sharers(), "share the manifest that rank 0 reads or creates")
    return unpack_manifest(data, ask(), name)


def new_manifest(
    manifest: AnyPath, read: ReadOptions, ask: Callable[[], Asked], inspect: Callable[[], Inspected]
) -> bytes:
    """The bytes of a new manifest, after they were written; takes the arguments of `kept_inspection`.

    Raises:
        OptionError: it lies among the data, or cannot be saved.
    """
    storage, path = _opened(manifest, read)
    asked = ask()
    _reject_among_data(_spelled(manifest, path, storage), asked)
    data = pack_manifest(inspect(), asked)
    write_manifest(storage, path, data)
    return data


def _opened(manifest: AnyPath, read: ReadOptions) -> tuple[Storage, str]:
    """The storage of the manifest, and its path there."""
    filesystem = None if name_of(manifest).startswith("file://") else read.filesystem
    return open_storage(manifest, read.storage_options, filesystem)


def name_of(manifest: AnyPath) -> str:
    """The manifest's name, for messages."""
    return printable(str(stringify_path(manifest)))


def stale_remedy(manifest: AnyPath) -> str:
    """The remedy for a file that differs from the manifest: a sentence for the error."""
    name = name_of(manifest)
    return f"It was planned from manifest={name}: delete the manifest, and the next run creates a new one."


def read_manifest(storage: Storage, path: str) -> bytes | None:
    """The bytes of the file at `path`, or None if there is no file.

    Raises:
        OptionError: it is a folder.
        FileReadError: it cannot be read.
    """
    stored = storage.look(path)
    if stored is None:
        return None
    if stored.folder:
        raise OptionError(
            f"manifest={printable(path)} is a folder: expected the path of a file.", remedies=[leave_out("manifest")]
        )
    with Naming(path, "manifest"), storage.open(path) as source:
        data: bytes = source.read()
        return data


def write_manifest(storage: Storage, path: str, data: bytes) -> None:
    """Write these bytes to the file at `path` atomically: a reader sees all of them or none.

    Raises:
        OptionError: it cannot be written.
        BatchTimeoutError: the store does not answer.
    """
    try:
        if storage.local:
            _replace(path, data)
        else:
            storage.write(path, data)
    except DataLoaderUtilsError:
        raise
    except Exception as error:
        raise OptionError(
            f"manifest={printable(path)}: it cannot be written: {type(error).__name__}: {printable(str(error))}.",
            remedies=[leave_out("manifest")],
        ) from error


def _replace(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    beside = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
    try:
        with open(beside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        Path(beside).unlink(missing_ok=True)


def _reject_among_data(place: str, asked: Asked) -> None:
    """Reject a location where the manifest itself would be listed as data."""
    for entry in asked.path:
        if lists(entry, place):
            raise OptionError(
                f"manifest={printable(place)} lies among the data of {printable(entry)} and would be read as data.",
                remedies=[use(manifest="/_".join(place.rsplit("/", 1)))],
            )
