"""Where files are, and how any process opens them.

A `Storage` can be sent to other processes, connections cannot: each process builds its own from the recipe, because
clients of remote stores survive neither a fork nor a pickle.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.implementations.memory import MemoryFileSystem

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.events import Recorder, recorder
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.redaction import printable, remember_secrets
from torch_dataloader_utils.storage.cache import CachedRanges, cache_plan, can_cache
from torch_dataloader_utils.storage.cache_plans import CachePlan
from torch_dataloader_utils.storage.clients import ArrowClient, Opened
from torch_dataloader_utils.storage.errors import Naming, Reaching
from torch_dataloader_utils.storage.fsspec_client import FsspecClient
from torch_dataloader_utils.storage.hub_client import HubClient, is_hub
from torch_dataloader_utils.storage.local_files import LocalClient, LocalFile
from torch_dataloader_utils.storage.locks import ForkLock
from torch_dataloader_utils.storage.remote import Fetch, Range, RangeFile, RemoteFile
from torch_dataloader_utils.storage.renewal import Renewal
from torch_dataloader_utils.storage.retries import past_end, refused, retried
from torch_dataloader_utils.storage.s3_calls import s3_locked
from torch_dataloader_utils.storage.versions import Stored, as_planned, check_same, check_unchanged
from torch_dataloader_utils.storage.waiting import DaemonThreads, answered, limit

# Open files of remote stores: requests are retried, and files reopened after credentials were renewed.

_IN_FLIGHT = 32  # concurrent requests of a process, besides those of its reading threads


class HeldFile:
    """A file that is opened at first use, and reopened when its storage was renewed. For one thread at a time.

    Args:
        storage: where it is.
        path: its path, for messages.
        open_by: opens it through the given storage.
        check: raises an error if the opened file has changed.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        open_by: Callable[[Storage], Opened],
        check: Callable[[Opened], None] = lambda opened: None,
    ) -> None:
        self._storage = storage
        self._path = path
        self._open_by = open_by
        self._check = check
        self._by: Storage | None = None
        self._opened: Opened | None = None

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        size = self._accepted(self._by_latest).facts.size
        assert size is not None
        return size

    def fetch(self, ranges: Sequence[Range]) -> list[bytes | pa.Buffer]:
        """The bytes of each range, requested all at once if the file allows it; each request is retried on its own."""
        return self._accepted(lambda: self._fetch(self._by_latest(), ranges))

    def confirm(self) -> None:
        """Check that the file has not changed: then all bytes fetched before are of one version.

        Raises:
            FileChangedError: it has changed.
        """
        self._accepted(lambda: self._confirm(self._by_latest()))

    def close(self) -> None:
        """Close the file, unless others may be reading it: then the last of them releases it."""
        if self._opened is not None and not self._opened.parallel:
            self._opened.close()

    def _fetch(self, opened: Opened, ranges: Sequence[Range]) -> list[bytes | pa.Buffer]:
        noted = recorder()  # requests run in threads of their own

        def read(span: Range) -> bytes | pa.Buffer:
            return self._retried(lambda: self._read(opened, span), noted)

        several = opened.parallel and len(ranges) > 1
        parts = list(_pool(os.getpid()).map(read, ranges) if several else map(read, ranges))
        noted.count("requests", len(parts))
        noted.count("bytes_read", sum(map(len, parts)))
        return parts

    def _read(self, opened: Opened, span: Range) -> bytes | pa.Buffer:
        try:
            return opened.read(*span)
        except Exception as error:
            if past_end(error) or type(error) is OSError:  # pyarrow's errors do not say what they are about
                self._check(opened)
            raise

    def _confirm(self, opened: Opened) -> None:
        self._retried(lambda: self._check(opened))

    def _retried(self, call: Callable[[], T], noted: Recorder | None = None) -> T:
        return retried(call, f"reading {printable(self._path)}", self._storage.timeout, noted)

    def _by_latest(self) -> Opened:
        latest = self._storage.latest
        if self._opened is None or latest is not self._by:
            self.close()
            self._by, self._opened = latest, None
            self._opened = self._open_by(latest)
        return self._opened

    def _accepted(self, call: Callable[[], T]) -> T:
        """What `call` returns, repeated with new credentials if the current ones are refused; timed as reading."""
        noted = recorder()
        stage = noted.enter("read")
        try:
            return call()
        except Exception as error:
            renewal, by = self._storage.renewal, self._by
            if renewal is None or by is None or not refused(error):
                raise
            if not renewal.possible:
                raise PermissionError(
                    f"the store refuses the credentials that the catalog gave {renewal.validity}, and only the process "
                    "that created the loader and its own worker processes can get new ones. Create the loader in the "
                    "process that reads, and leave num_workers of torch's DataLoader at 0: "
                    f"worker_mode='processes' reads in processes, too. ({type(error).__name__}: {error})"
                ) from error
            if renewal.instead_of(by, self._storage) is None:
                raise
            return call()
        finally:
            noted.enter(stage)


@lru_cache(maxsize=1)
def _pool(pid: int) -> DaemonThreads:
    """This process's threads for requests; a forked child inherits no threads, so it needs its own."""
    return DaemonThreads(_IN_FLIGHT, "ranges")


# The remote files that this process has open: threads share them, and some are kept for later reads.

Key: TypeAlias = tuple[Any, ...]

# Files kept although no one reads them: opening one again would cost a request. One takes about 2 KiB.
_KEPT = 4096


class OpenedFiles:
    """Open files by key; for any number of threads. A forked child begins without any."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._shared: WeakValueDictionary[Key, Opened] = WeakValueDictionary()
        self._kept: OrderedDict[Key, Opened] = OrderedDict()

    def get(self, key: Key) -> Opened | None:
        """The file that was added under this key, if it is still open."""
        with self._lock:
            return self._shared.get((os.getpid(), key))

    def add(self, key: Key, opened: Opened) -> None:
        """Share a file while it is in use; a `reusable` one also after that, unless too many were added since."""
        place = os.getpid(), key
        with self._lock:
            self._shared[place] = opened
            if opened.reusable:
                self._kept[place] = opened
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)


# How a process builds the fsspec filesystem of a store: from its class, arguments and options.

Recipe: TypeAlias = tuple[type[Any], tuple[Any, ...], Mapping[str, Any]]


def built(recipe: Recipe) -> fsspec.AbstractFileSystem:
    """A new filesystem, because the instances that fsspec caches and shares may hold outdated listings."""
    kind, args, given = recipe
    remember_secrets(given)  # a worker process gets them with the recipe only
    options = {**given, "skip_instance_cache": True}
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "fsspec.implementations.http.HTTPFileSystem":
        # Bytes as they are stored: ranges of a compressed response would be other bytes.
        options["headers"] = {"Accept-Encoding": "identity", **(options.get("headers") or {})}
    if name != "s3fs.core.S3FileSystem":
        return kind(*args, **options)
    # Retries would multiply: botocore's within s3fs's within ours. So s3fs's are off; botocore's stay, with jitter,
    # because a listing of many pages must not start over when one page fails.
    retries = {"mode": "standard", "total_max_attempts": 3}
    fs = kind(*args, **{**options, "config_kwargs": {"retries": retries, **(options.get("config_kwargs") or {})}})
    fs.retries = 1
    return fs


T = TypeVar("T")
Client: TypeAlias = ArrowClient | FsspecClient

# The credentials for all that is below a path of a storage, as the recipe with them.
Vended: TypeAlias = tuple[str, Recipe]

# Options that say where a store is.
_ADDRESSES = ("endpoint_url", "account_name", "account_host", "host")
# Bytes read first from the end of a file when it is planned: one request suffices for most footers.
_TAIL = 64 << 10

# The process that imported this module: in a forked child os.getpid() differs from it.
_BORN = os.getpid()
_LOCK = ForkLock()
_OPENED = OpenedFiles()


@dataclass(frozen=True)
class Storage:
    """A place that holds files; without recipe and filesystem, the local disk. Picklable; its repr shows no secret.

    Attributes:
        protocol: such as "file" or "s3".
        recipe: class, arguments and options of the fsspec filesystem that each process builds for itself.
        filesystem: the fsspec or pyarrow filesystem that the user passed instead.
        cache: the folder on the local disk that caches remote data files, if any.
        remedy: what to do about a file that is not as planned; a sentence for the error.
        vended: recipes with other credentials, for what is below their paths; the first one for a path applies.
        renewal: renews this storage's credentials, if those in the recipes expire.
        timeout: seconds that a call to a remote store may take; 0 for no limit.
    """

    protocol: str = "file"
    recipe: Recipe | None = field(default=None, repr=False)
    filesystem: Any = field(default=None, repr=False)
    cache: Cache | None = None
    remedy: str = field(default="", repr=False, compare=False)
    vended: tuple[Vended, ...] = field(default=(), repr=False)
    renewal: Renewal[Storage] | None = field(default=None, repr=False, compare=False)
    timeout: float = field(default_factory=limit, repr=False, compare=False)

    def __hash__(self) -> int:
        return hash(self.protocol)  # options and filesystems need not be hashable; equality compares them

    def __getstate__(self) -> dict[str, Any]:
        """With the latest credentials that are known: the process that reads may start long after this one."""
        if self.renewal is None:
            return vars(self)
        issued = self.renewal.issued
        latest = self if issued.storage is None else issued.storage
        return {**vars(self), "recipe": latest.recipe, "vended": latest.vended, "renewal": self.renewal.of(issued)}

    @property
    def local(self) -> bool:
        """Whether files are opened straight from the local disk."""
        return self.recipe is None and self.filesystem is None

    @property
    def per_process(self) -> bool:
        """Whether its files are in this process's memory, where worker processes cannot see them."""
        if self.recipe is None:
            return isinstance(self.filesystem, MemoryFileSystem)
        kind, _, options = self.recipe
        return issubclass(kind, MemoryFileSystem) or options.get("target_protocol") == "memory"

    @property
    def identity(self) -> str:
        """Which store this is, such as "s3 http://localhost:9000": protocol, endpoint and account; no secrets."""
        options = getattr(self.filesystem, "storage_options", {}) if self.recipe is None else self.recipe[2]
        options = {**options, **(options.get("client_kwargs") or {})}
        names = [str(options[name]) for name in _ADDRESSES if options.get(name)]
        parts = str(options.get("connection_string") or "").split(";")
        names += [part for part in parts if part.partition("=")[0] in ("AccountName", "BlobEndpoint")]
        return " ".join([self.protocol, *map(printable, names)])

    @property
    def latest(self) -> Storage:
        """This storage with valid credentials."""
        return self if self.renewal is None else self.renewal.latest(self)

    def client(self, path: str = "") -> Client:
        """This process's connection for a path, created at first use in it."""
        latest = self.latest.at(path)
        with _LOCK:  # threads that start together share one
            return _client(latest, os.getpid())

    def at(self, path: str) -> Storage:
        """This storage with the credentials for a path."""
        recipe = next((recipe for place, recipe in self.vended if is_below(path, place)), self.recipe)
        return replace(self, recipe=recipe, vended=()) if self.vended else self

    def connect(self) -> pafs.FileSystem:
        """This process's connection as a pyarrow filesystem, for writing."""
        fs = self.client().fs
        return fs if isinstance(fs, pafs.FileSystem) else pafs.PyFileSystem(pafs.FSSpecHandler(fs))

    def open(self, path: str) -> pa.NativeFile:
        """The file at `path`, opened for random reads; not memory-mapped, because a truncated file would crash.

        Errors in opening it are the client's own: wrap the call in `Naming` to name the file.
        """
        if self.local:
            return pa.OSFile(path, "rb")
        held = HeldFile(self, path, lambda storage: storage._asked(lambda: storage.client(path).open(path), path))
        return RemoteFile(RangeFile(path, held.size, held.fetch, held.close), "r")

    def open_data(self, file: DataFileInfo) -> pa.NativeFile:
        """The data file, opened for random reads; `confirm_unchanged` checks what was read of it.

        A local file is checked here, too. A remote one is if its client asks the store anyway: only a check after
        reading shows that all bytes are of the planned version.

        Raises:
            FileChangedError: it has changed or disappeared.
            FileReadError: it cannot be read.
        """
        with as_planned(file, self.remedy):
            if self.local:
                return LocalFile(file, self.remedy)
            if self.cache is not None and can_cache(self.identity, file):
                return self._cached(file, self.cache)
            return self._remote(file)

    def open_footer(self, file: DataFileInfo) -> pa.NativeFile:
        """As `open_data`, for planning the file: one data request prefetches its last 64 KiB.

        The file need not be checked: what was planned from the footer of another version is found when its data is
        read. If bytes are missing or cannot be decoded, it is checked nevertheless, for a clear error.
        """
        source = self.open_data(file)
        if self.local:
            return source
        with as_planned(file, self.remedy):
            source.prefetch([(max(0, source.size() - _TAIL), source.size())], keep=True)
        return source

    def cache_plan(self, files: Iterable[DataFileInfo], passes: int | None) -> CachePlan | None:
        """What tells other processes that these files are read through the cache; None without one.

        Args:
            files: the files.
            passes: complete passes after which what they did not use may go; None: never.
        """
        if self.local or self.cache is None:
            return None
        return cache_plan(self.identity, files, self.cache, passes)

    def look(self, path: str) -> Stored | None:
        """The file or folder at `path`, or None."""
        with self._naming(path):
            return self._tried(lambda client: client.look(path), path)

    def find(self, folder: str, recursive: bool = True) -> list[Stored]:
        """The files in `folder`, and below it if `recursive`, sorted by path: one listing."""
        with self._naming(folder):
            files = self._tried(lambda client: client.find(folder, recursive), folder)
        # Object stores may hold folder markers.
        return sorted((file for file in files if not file.path.endswith("/")), key=lambda file: file.path)

    def write(self, path: str, data: bytes) -> None:
        """Write a file at once, so that a reader sees all of it or none; folders on the local disk are made.

        Object stores show an object only when it is complete. Errors are the client's own.

        Raises:
            BatchTimeoutError: the store does not answer.
        """
        if self.local:
            _replace(path, data)
            return

        def put() -> None:
            with self.connect().open_output_stream(path, compression=None) as sink:
                sink.write(data)

        answered(put, self.timeout, f"writing {printable(path)}")

    def named(self, path: str) -> str:
        """The path as users write it, with its protocol; for messages."""
        if self.recipe is None or path.startswith("/") or "://" in path:
            return path
        own = self.recipe[0].protocol  # another one than that of the URL if files are in an archive, or cached
        return f"{self.protocol}://{path}" if self.protocol in ([own] if isinstance(own, str) else own) else path

    def _naming(self, path: str) -> Naming:
        return Naming(path) if self.recipe is None else Reaching(self.named(path))

    def _tried(self, call: Callable[[Client], T], path: str) -> T:
        return call(self.client()) if self.local else self._asked(lambda: call(self.client(path)), path, "listing")

    def _asked(self, call: Callable[[], T], path: str, work: str = "opening") -> T:
        """What a call to the store returns, retried, within the time limit."""
        return retried(call, f"{work} {printable(path)}", self.timeout)

    def _checked(self, file: DataFileInfo) -> Opened:
        """The file as its client opens it, checked to be the one that was planned, as far as the client knows then.

        Threads that read the same file share it while it is open, so that one metadata request serves all.
        """
        key = self, file.path, file.version, file.file_size
        opened = _OPENED.get(key)
        if opened is None:
            opened = self._asked(lambda: self.client(file.path).open(file.path, file.file_size), file.path)
            check_unchanged(file, opened.facts)
            if opened.parallel:
                _OPENED.add(key, opened)
        return opened

    def _held(self, file: DataFileInfo) -> HeldFile:
        def check(opened: Opened) -> None:
            check_same(file, opened.facts, opened.now())

        return HeldFile(self, file.path, lambda storage: storage._checked(file), check)

    def _remote(self, file: DataFileInfo) -> RemoteFile:
        held = self._held(file)
        fetch, confirm = self._calls(file, held)
        return RemoteFile(RangeFile(file.path, held.size, fetch, held.close, confirm), "r")

    def _cached(self, file: DataFileInfo, cache: Cache) -> pa.NativeFile:
        """The file, read through the cache; what is missing is read at the store, and checked before it is kept."""
        held = self._held(file)
        cached = CachedRanges(self.identity, file, *self._calls(file, held), cache)
        # It decides which gaps are read: not those whose blocks are in the cache.
        ranges = RangeFile(file.path, file.file_size, cached.fetch, held.close, cached.confirm, gap=0)
        return RemoteFile(ranges, "r")

    def _calls(self, file: DataFileInfo, held: HeldFile) -> tuple[Fetch, Callable[[], None]]:
        """What reads ranges of a file, and what checks that they are of the planned version."""

        def fetch(ranges: Sequence[Range]) -> list[bytes | pa.Buffer]:
            with as_planned(file, self.remedy):
                return held.fetch(ranges)

        def confirm() -> None:
            with as_planned(file, self.remedy):
                held.confirm()

        return fetch, confirm


def is_below(path: str, place: str) -> bool:
    """Whether a path is this one, or below it; everything is below ""."""
    return not place or path == place or path.startswith(f"{place}/")


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


@lru_cache(maxsize=32)
def _client(storage: Storage, pid: int) -> Client:
    if storage.local:
        return LocalClient()
    if storage.recipe is not None:
        fs = built(storage.recipe)
    else:
        fs = storage.filesystem if pid == _BORN else _copied(storage.filesystem)
    if isinstance(fs, pafs.FileSystem):
        return ArrowClient(fs)
    return HubClient(fs) if is_hub(fs) else FsspecClient(fs)


def _copied(filesystem: Any) -> Any:
    """A filesystem of this process's own, because a forked child must not use its parent's sockets.

    Raises:
        FileReadError: pyarrow cannot create it in this process.
    """
    if s3_locked() and isinstance(filesystem, pafs.S3FileSystem):
        raise FileReadError(
            "filesystem=S3FileSystem: this process was forked while its parent was in a request to S3, so pyarrow can "
            "create no S3 client in it. Start processes with 'forkserver' or 'spawn', or pass an s3:// URL and "
            "storage_options= instead of filesystem=."
        )
    return pickle.loads(pickle.dumps(filesystem))
