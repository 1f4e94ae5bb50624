"""The Hugging Face Hub: a repository at a commit, whose files never change, listed by its client and read by ranges."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage.clients import Opened, complete
from torch_dataloader_utils.storage.fsspec_client import FsspecClient, stored
from torch_dataloader_utils.storage.retries import status_of
from torch_dataloader_utils.storage.versions import Stored, StoredFacts

Commits: TypeAlias = dict[tuple[str, str, str], str]  # kind and name of a repository, revision -> commit

_LOG = logging.getLogger("torch_dataloader_utils")

_COMMIT = re.compile(r"[^@]*@([0-9a-f]{40})(?:/.*)?")
_NOT_THERE = (401, 403, 404)  # the Hub does not say which repositories are private
_BUCKETS = "buckets/"  # they have no commits

_HOMES: dict[str, set[str]] = {}  # header with a token -> the endpoints for which it was given
_told: set[str] = set()  # other hosts


def is_hub(fs: Any) -> bool:
    """Whether it is the Hub's client."""
    return type(fs).__module__.startswith("huggingface_hub.")


def at_commit(fs: Any, path: str, known: Commits) -> str:
    """A path in a repository, with its branch or tag (by default, the main branch) replaced by the commit it is at.

    Args:
        fs: the Hub's client.
        path: without protocol, such as "datasets/org/name@revision/folder".
        known: commits that revisions were at; the path's is added.

    Raises:
        FileNotFoundError: there is no such repository or revision, or it is private.
    """
    if path.startswith(_BUCKETS) or _COMMIT.fullmatch(path):
        return path
    from huggingface_hub import HfApi

    try:
        found = fs.resolve_path(path)
        place = (found.repo_type, found.repo_id, found.revision)
        if place not in known:
            api = HfApi(endpoint=fs.endpoint, token=fs.token)
            known[place] = api.repo_info(found.repo_id, revision=found.revision, repo_type=found.repo_type).sha
    except OSError as error:
        if status_of(error) in _NOT_THERE:
            raise FileNotFoundError(path) from error
        raise
    repository = path.rstrip("/").removesuffix(found.path_in_repo)  # names of files may have an "@", too
    root = repository.partition("@")[0] if "@" in repository else found.root
    return f"{root}@{known[place]}/{found.path_in_repo}".rstrip("/")


def commits(paths: Iterable[str]) -> list[str]:
    """The commits of these paths, each once."""
    return sorted({match[1] for path in paths if (match := _COMMIT.fullmatch(path)) is not None})


class HubClient(FsspecClient):
    """Repositories at a commit, and buckets. It stays in its process and retries nothing.

    As nothing at a commit changes, listings are kept, and opening a file whose size is known needs no request. Files
    of buckets do change: they are treated as those of other stores.
    """

    def look(self, path: str) -> Stored | None:
        """The file or folder at `path`, or None."""
        try:
            return _versioned(stored(path, self.info(path)))
        except FileNotFoundError:
            return None

    def find(self, folder: str, recursive: bool) -> list[Stored]:
        """The files in `folder`, and below it if `recursive`."""
        keep_token_home(self.fs)
        if not commits([folder]):
            return super().find(folder, recursive)
        infos = self.fs.find(folder, maxdepth=None if recursive else 1, detail=True)
        return [_versioned(stored(path, info)) for path, info in infos.items()]

    def children(self, folder: str) -> list[Stored]:
        """The files and folders in `folder`."""
        keep_token_home(self.fs)
        return super().children(folder)

    def open(self, path: str, size: int = 0) -> Opened:
        """The opened file."""
        found = commits([path])
        if not found:
            return super().open(path, size)
        return _HubFile(self, path, StoredFacts(size or int(self.info(path)["size"]), found[0]))

    def info(self, path: str) -> Mapping[str, Any]:
        """The metadata of `path`."""
        keep_token_home(self.fs)
        if not commits([path]):
            return super().info(path)
        info: Mapping[str, Any] = self.fs.info(path)
        return info

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The bytes `[start, stop)`, or all; one request, and one to the store that it leads to."""
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        headers = build_hf_headers(token=self.fs.token)
        if stop is not None:
            headers["Range"] = f"bytes={start or 0}-{stop - 1}"
        # The token is not sent on to other hosts.
        response = get_session().get(self.fs.url(path), headers=headers, follow_redirects=True)
        hf_raise_for_status(response)
        content: bytes = response.content
        return content if response.status_code == 206 or stop is None else content[start or 0 : stop]


class _HubFile:
    """A file at a commit."""

    parallel = reusable = True

    def __init__(self, client: HubClient, path: str, facts: StoredFacts) -> None:
        self._client, self._path, self.facts = client, path, facts

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`."""
        return complete(self._client.read(self._path, start, stop), start, stop)

    def now(self) -> StoredFacts:
        """What was known when it was opened: it cannot change."""
        return self.facts

    def close(self) -> None:
        """Does nothing: no connection is its own."""


def keep_token_home(fs: Any) -> None:
    """Have the Hub's library send the token of `fs` to its endpoint, and to no other host.

    The library follows the link to the next page of a listing with the token, wherever the answer says that it is.
    Redirects are another matter: there, its HTTP client leaves the token out.
    """
    from huggingface_hub.utils import build_hf_headers, get_session

    header = build_hf_headers(token=fs.token).get("authorization")
    if header is not None:
        _HOMES.setdefault(header, set()).add(fs.endpoint)
        hooks = get_session().event_hooks["request"]  # for all threads, since it lists large folders by several
        if _without_foreign_token not in hooks:
            hooks.append(_without_foreign_token)


def _without_foreign_token(request: Any) -> None:
    """Take a known token out of a request to a host that it was not given for."""
    homes = _HOMES.get(request.headers.get("authorization"), ())
    if not homes or any(_same_home(str(request.url), home) for home in homes):
        return
    del request.headers["authorization"]
    host = urlsplit(str(request.url)).netloc
    if host not in _told:
        _told.add(host)
        _LOG.warning(
            "%s refers to %s: requests there are sent without the Hub's token",
            printable(", ".join(sorted(homes))), printable(host),
        )  # fmt: skip


def _same_home(url: str, endpoint: str) -> bool:
    """Whether a URL is on the endpoint's host, or on one below it."""
    there, home = urlsplit(url), urlsplit(endpoint)
    below = f".{there.hostname}".endswith(f".{home.hostname}")
    return below and there.scheme == home.scheme and _port(there) == _port(home)


def _port(url: SplitResult) -> int | None:
    return url.port or {"https": 443, "http": 80}.get(url.scheme)


def _versioned(found: Stored) -> Stored:
    commit = next(iter(commits([found.path])), "")
    return replace(found, version=f"etag:{commit}" if commit else found.version)
