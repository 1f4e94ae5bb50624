"""Rounds on an object store: whoever comes first decides, by a condition of the request."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.following.folders import NOW, add, ids_of
from tests.storage.conftest import moto_s3 as moto_s3
from tests.storage.servers import Store
from torch_dataloader_utils import Files, Follow, stream
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.following.round_log import RoundLog
from torch_dataloader_utils.following.rounds import Round
from torch_dataloader_utils.following.seen import RoundFile, Seen


@pytest.fixture
def folder(moto_s3: Store, tmp_path: Path) -> str:
    add(tmp_path, "h=1/a.parquet", range(10))
    moto_s3.put(tmp_path, tmp_path.name)
    return moto_s3.url(tmp_path.name)


def test_objects_are_read_at_the_first_look(moto_s3: Store, folder: str, tmp_path: Path) -> None:
    follow = Follow(wait=0, rounds=f"{folder}-rounds")  # whole objects need not settle
    shared: dict[str, Any] = {"num_ranks": 2, "even": "pad", "batch_size": 5}
    shared["storage_options"] = moto_s3.storage_options
    ranks = [stream(Files(folder, follow=follow), rank=rank, **shared) for rank in range(2)]
    assert sorted(ids_of(ranks[0]) + ids_of(ranks[1])) == list(range(10))
    add(tmp_path / "more", "h=2/b.parquet", range(10, 20))
    moto_s3.put(tmp_path / "more", tmp_path.name)
    assert sorted(ids_of(ranks[1]) + ids_of(ranks[0])) == list(range(10, 20))


def test_of_many_proposals_one_is_decided(moto_s3: Store, folder: str) -> None:
    found: list[Any] = []
    start = threading.Barrier(8)

    def propose(number: int) -> None:
        log = RoundLog.at(f"{folder}-many", moto_s3.storage_options)
        start.wait()
        found.append(log.agree(Round(0, (RoundFile(f"{number}.parquet", 1, ""),)), Seen(), "{}"))

    threads = [threading.Thread(target=propose, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert found.count(found[0]) == 8


def test_a_store_that_overwrites_is_refused(moto_s3: Store, folder: str) -> None:
    log = RoundLog.at(f"{folder}-over", moto_s3.storage_options)
    with (
        patch("torch_dataloader_utils.storage.storage.Storage.create", lambda storage, path, data: True),
        pytest.raises(OptionError, match="the store overwrites a file"),
    ):
        log.agree(Round(0, ()), Seen(), "{}")


def test_a_folder_without_an_object_is_waited_for(moto_s3: Store, tmp_path: Path) -> None:
    url = moto_s3.url(f"{tmp_path.name}-none")

    def later() -> None:
        add(tmp_path, "a.parquet", [7])
        moto_s3.put(tmp_path, f"{tmp_path.name}-none")

    timer = threading.Timer(0.3, later)
    timer.start()
    follow = Follow(**{**NOW, "wait": None, "poll": 0.1})
    assert ids_of(stream(Files(url, follow=follow), storage_options=moto_s3.storage_options)) == [7]
    timer.join()
