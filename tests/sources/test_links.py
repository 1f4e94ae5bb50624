"""Links and special files in folders: each real file once, and nothing opened that is no regular file."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.test_files import found, touch
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DataNotFoundError, OptionError
from torch_dataloader_utils.storage import local_files


def test_a_link_to_a_folder_that_is_read_anyway_adds_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "v1/a", "v2/a")
    (tmp_path / "latest").symlink_to("v2")
    with caplog.at_level(logging.INFO):
        assert found(tmp_path, tmp_path) == ["v1/a", "v2/a"]
    (line,) = caplog.messages
    assert line.startswith("left out 1 of 3 names")
    assert line.endswith(f"{tmp_path}/latest/a")
    assert found(tmp_path / "latest", tmp_path) == ["latest/a"]
    assert found(f"{tmp_path}/l*/a", tmp_path) == ["latest/a"]


def test_rows_behind_a_link_are_read_once(tmp_path: Path) -> None:
    for version in range(2):
        (tmp_path / f"v{version}").mkdir()
        pq.write_table(pa.table({"id": np.arange(5) + 5 * version}), tmp_path / f"v{version}" / "a.parquet")
    (tmp_path / "latest").symlink_to(tmp_path / "v1")
    (tmp_path / "copy.parquet").symlink_to("v0/a.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=4)
    assert [row for batch in loader for row in batch["id"].tolist()] == list(range(10))


def test_links_that_lead_back_are_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "data/a/x", "data/b/y", "beside/z")
    for link, target in {"up": "..", "here": ".", "a/top": "../..", "a/b": "../b", "b/a": "../a"}.items():
        (tmp_path / "data" / link).symlink_to(target)
    (tmp_path / "data" / "self").symlink_to("self")
    with pytest.raises(DataNotFoundError, match="data/self is a link to self, which does not exist"):
        found(tmp_path / "data", tmp_path)
    (tmp_path / "data" / "self").unlink()
    assert found(tmp_path / "data", tmp_path) == ["data/a/x", "data/b/y"]


def test_data_elsewhere_is_read_through_a_link(tmp_path: Path) -> None:
    touch(tmp_path, "data/day=1/x", "more/x", "one")
    (tmp_path / "data" / "day=2").symlink_to(tmp_path / "more")
    (tmp_path / "data" / "day=1" / "two").symlink_to(tmp_path / "one")
    assert found(tmp_path / "data", tmp_path / "data") == ["day=1/two", "day=1/x", "day=2/x"]
    assert found(f"{tmp_path}/data/*/x", tmp_path / "data") == ["day=1/x", "day=2/x"]


def test_a_link_to_what_is_hidden_is_read(tmp_path: Path) -> None:
    touch(tmp_path, "..2026/x")  # as Kubernetes mounts a ConfigMap
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "x").symlink_to("..data/x")
    (tmp_path / "b").symlink_to("..2026")
    (tmp_path / "a").symlink_to("..2026")
    assert found(tmp_path, tmp_path) == ["a/x"]
    assert found(f"{tmp_path}/b/*", tmp_path) == found(f"{tmp_path}/b*/*", tmp_path) == ["b/x"]


def test_a_link_that_leads_nowhere_is_an_error_unless_it_is_not_asked_for(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet")
    (tmp_path / ".lock").symlink_to("nobody@host:1")
    (tmp_path / "b.csv").symlink_to("gone.csv")
    with pytest.raises(DataNotFoundError, match=r"b\.csv is a link to gone\.csv, which does not exist"):
        found(tmp_path, tmp_path)
    with pytest.raises(DataNotFoundError, match="is a link to gone"):
        found(tmp_path / "b.csv", tmp_path)
    assert found(f"{tmp_path}/*.parquet", tmp_path) == ["a.parquet"]


def test_only_regular_files_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    os.mkfifo(tmp_path / "b.parquet")  # who opens it waits for a writer
    (tmp_path / "c.parquet").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "d.parquet"))
    loader, _ = StructuredDataset.create_dataloader(tmp_path)
    assert [batch["id"].tolist() for batch in loader] == [[1, 2]]
    (line,) = [message for message in caplog.messages if "regular" in message]
    assert line == f"left out 3 of 4 that are not regular files; the first is {tmp_path}/b.parquet, a named pipe"
    for name, kind in {"b": "a named pipe", "c": "a device", "d": "a socket"}.items():
        with pytest.raises(DataNotFoundError, match=f"{name}.parquet is {kind}: expected a file or folder"):
            found(tmp_path / f"{name}.parquet", tmp_path)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(DataNotFoundError, match="found 3 files, all no regular files"):
        found(tmp_path, tmp_path)


def test_entries_that_share_a_file_by_a_link_are_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "v1/a", "v2/a")
    (tmp_path / "latest").symlink_to("v2")
    with pytest.raises(OptionError, match=r"v2/a is listed 2 times \(as .*latest/a, too\)"):
        found([tmp_path / "v2", tmp_path / "latest" / "a"], tmp_path)


def test_links_without_end_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "_MOST_LINKS", 50)
    names = "abcdef"
    touch(tmp_path, *(f"{name}/x" for name in names))
    for one, other in itertools.permutations(names, 2):
        (tmp_path / one / other).symlink_to(tmp_path / other)
    with pytest.raises(DataNotFoundError, match="more than 50 links to folders"):
        found(tmp_path, tmp_path)


FOLDERS = ["a", "b", "a/c", "_d"]


def reachable(root: str) -> Iterator[str]:
    """The real paths of the files that visible names lead to, following each link that does not lead back."""
    pending: list[tuple[str, frozenset[str]]] = [(root, frozenset())]
    while pending:
        folder, holders = pending.pop()
        for entry in os.scandir(folder):
            real = os.path.realpath(entry.path)
            if entry.name.startswith("_"):
                continue
            if os.path.isfile(real):
                yield real
            elif not entry.is_symlink():
                pending.append((real, holders))
            elif not any(f"{holder}/".startswith(f"{real}/") for holder in {*holders, folder}):
                pending.append((real, holders | {folder}))


@given(links=st.lists(st.tuples(*[st.sampled_from(["", *FOLDERS])] * 2, st.sampled_from("xy_")), max_size=6))
def test_each_file_that_a_name_leads_to_is_found_once(
    tmp_path_factory: pytest.TempPathFactory, links: Sequence[tuple[str, str, str]]
) -> None:
    root = tmp_path_factory.mktemp("root")
    touch(root, "top", *(f"{folder}/file" for folder in FOLDERS))
    for number, (holder, target, name) in enumerate(links):
        (root / holder / f"{name}{number}").symlink_to(root / target)
    files = [os.path.realpath(root / name) for name in found(root, root)]
    assert sorted(files) == sorted(set(reachable(str(root))))
