"""Data sets of the Hugging Face Hub are read at one commit, by few requests."""

import io
import socket
import time
from collections.abc import Iterator
from typing import Any

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.hub import Hub, hub_server
from torch_dataloader_utils import (
    CheckpointMismatchError,
    DataNotFoundError,
    FileReadError,
    Processes,
    StructuredDataset,
)
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.storage import retries
from torch_dataloader_utils.storage.hub_client import HubClient, _same_home


def parquet(first: int, last: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(first, last)}), sink, row_group_size=10)
    return sink.getvalue()


FILES = {"data/a.parquet": parquet(0, 30), "data/deep/b.parquet": parquet(30, 50), "README.md": b"# data"}
MOVED = {name: parquet(100, 130) if name.endswith("a.parquet") else data for name, data in FILES.items()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    # Other tests of this process keep Hugging Face's libraries offline; a worker process reads the variable itself.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with hub_server() as hub:
        hub.commit(FILES)
        yield hub


def opened(hub: Hub, path: str = "datasets/org/name/data", **options: Any) -> Any:
    given = {"endpoint": hub.endpoint, "token": hub.token or False}
    return StructuredDataset.create_dataloader(f"hf://{path}", storage_options=given, batch_size=7, **options)


def ids(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch["id"].tolist()]


@pytest.mark.parametrize("path", ["datasets/org/name/data", "datasets/org/name@main/data/**/*.parquet"])
def test_an_unpinned_revision_is_read_at_the_commit_of_its_construction(hub: Hub, path: str) -> None:
    loaders = [opened(hub, path, num_ranks=2, rank=rank, num_workers=workers)[0] for rank, workers in ((0, 0), (1, 2))]
    hub.commit(MOVED)
    for _ in range(2):
        assert sorted(number for loader in loaders for number in ids(loader)) == list(range(50))
    assert sorted(ids(opened(hub, path)[0])) == [*range(30, 50), *range(100, 130)]


def test_paths_of_a_list_are_read_at_one_commit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = huggingface_hub.HfApi.repo_info

    def repo_info(*args: Any, **options: Any) -> Any:
        found = asked(*args, **options)
        hub.commit(FILES)  # a push after each answer
        return found

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", repo_info)
    given = {"endpoint": hub.endpoint, "token": False}
    paths = [f"hf://datasets/org/name/data/{name}.parquet" for name in ("deep/b", "a")]
    loader, dataset = StructuredDataset.create_dataloader(paths, storage_options=given, batch_size=7)
    assert sorted(ids(loader)) == list(range(50))
    assert len({file.info.path.partition("@")[2].partition("/")[0] for file in dataset._source.files}) == 1


def test_worker_processes_read_the_same_commit(hub: Hub) -> None:
    # "spawn": the fork server keeps the environment of its own start.
    loader, _ = opened(hub, num_workers=2, worker_mode=Processes(context="spawn"), timeout=60)
    hub.commit(MOVED)
    assert sorted(ids(loader)) == list(range(50))


@pytest.mark.parametrize("revision", ["{commit}", "v1", "refs%2Fpr%2F1"])
def test_a_commit_tag_or_request_may_be_given(hub: Hub, revision: str) -> None:
    commit = hub.commit(FILES, branch="v1")
    hub.branches["org/name", "refs/pr/1"] = commit
    hub.commit(MOVED)
    loader, dataset = opened(hub, f"datasets/org/name@{revision.format(commit=commit)}/data")
    assert sorted(ids(loader)) == list(range(50))
    assert all(f"org/name@{commit}/data/" in file.info.path for file in dataset._source.files)


def test_a_state_of_another_commit_is_refused(hub: Hub) -> None:
    state = opened(hub)[0].state_dict()
    opened(hub)[0].load_state_dict(state)
    first = hub.branches["org/name", "main"]
    hub.commit(MOVED)
    with pytest.raises(CheckpointMismatchError, match=f"commit {first}"):
        opened(hub)[0].load_state_dict(state)
    loader, _ = opened(hub, f"datasets/org/name@{first}/data")
    loader.load_state_dict(state)
    assert sorted(ids(loader)) == list(range(50))


def test_reading_needs_about_a_request_for_each_file(hub: Hub) -> None:
    loader, _ = opened(hub)
    planned = dict(hub.requests)
    assert sum(planned.values()) <= 12
    assert sorted(ids(loader)) == list(range(50))
    assert hub.requests["resolve"] - planned["resolve"] <= 5
    assert sum(hub.requests.values()) - hub.requests["resolve"] <= sum(planned.values()) + 2


def test_a_busy_hub_is_asked_again(hub: Hub) -> None:
    hub.faults += [503, 429]
    loader, _ = opened(hub)
    hub.faults += [503]
    assert sorted(ids(loader)) == list(range(50))


@pytest.mark.parametrize("path", ["datasets/org/nothing/data", "datasets/org/name@nothing/data"])
def test_what_the_hub_does_not_have_is_an_error(hub: Hub, path: str) -> None:
    with pytest.raises(DataNotFoundError, match=rf"hf://{path}: the Hub has no such repository or revision.*HF_TOKEN"):
        opened(hub, path)
    assert hub.requests["revision"] == 1  # it is not asked again


@pytest.mark.parametrize("path", ["datasets", "datasets/org", "datasets/org/na..me"])
def test_a_path_without_a_repository_is_an_error(hub: Hub, path: str) -> None:
    with pytest.raises(OptionError, match=rf"hf://{path}: expected a path in a repository, such as hf://datasets/org"):
        opened(hub, path)


@pytest.mark.parametrize("path", ["", "/data@v2", "@main", "@main/data@v2", "@v%2F1/data@v2", "/data@v2/*.parquet"])
def test_names_may_have_signs_that_urls_use(hub: Hub, path: str) -> None:
    names = ["a b", "c#d%20", "é?", "[x]"]
    files = {f"data@v2/{name}.parquet": parquet(10 * i, 10 * i + 10) for i, name in enumerate(names)}
    for branch in ("main", "v/1"):
        hub.commit(files, "org/na.me-1_x", branch)
    assert sorted(ids(opened(hub, f"datasets/org/na.me-1_x{path}")[0])) == list(range(40))


def test_a_client_that_is_given_reads_one_commit_too(hub: Hub) -> None:
    client = huggingface_hub.HfFileSystem(endpoint=hub.endpoint, token=False, skip_instance_cache=True)

    def loaded() -> Any:
        return StructuredDataset.create_dataloader("datasets/org/name/data", filesystem=client, batch_size=7)[0]

    loader = loaded()
    hub.commit(MOVED)
    for _ in range(2):
        assert sorted(ids(loader)) == list(range(50))
    with pytest.raises(CheckpointMismatchError, match="commit"):
        loaded().load_state_dict(loader.state_dict())
    assert sorted(ids(loaded())) == [*range(30, 50), *range(100, 130)]


@pytest.mark.parametrize("offline", [False, True])
def test_a_hub_out_of_reach_is_named(monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    with socket.socket() as unanswered:
        unanswered.bind(("127.0.0.1", 0))
        given = {"endpoint": f"http://127.0.0.1:{unanswered.getsockname()[1]}", "token": False}
        begun = time.monotonic()
        if not offline:
            monkeypatch.setattr(retries, "_TRIES", 2)
            retries._retrying.cache_clear()
        try:
            with pytest.raises(FileReadError, match="org/name: the client of hf:// cannot reach its store"):
                StructuredDataset.create_dataloader("hf://datasets/org/name", storage_options=given)
        finally:
            retries._retrying.cache_clear()
        assert time.monotonic() - begun < 10


def test_offline_is_not_retried() -> None:
    assert retries.permanent(huggingface_hub.errors.OfflineModeIsEnabled("offline"))


def test_a_folder_that_is_not_there_is_an_error(hub: Hub) -> None:
    with pytest.raises((DataNotFoundError, FileReadError), match="nowhere"):
        opened(hub, "datasets/org/name/nowhere")


def test_a_private_data_set_needs_its_token(hub: Hub) -> None:
    hub.token = "hf_spottedSPOTTED123spotted"
    assert sorted(ids(opened(hub)[0])) == list(range(50))
    given, hub.token = hub.token, "hf_another"
    wrong = {"endpoint": hub.endpoint, "token": given}
    with pytest.raises(DataNotFoundError, match="is private") as caught:
        StructuredDataset.create_dataloader("hf://datasets/org/name/data", storage_options=wrong)
    assert given not in f"{caught.value} {caught.value.__cause__}"


def test_what_has_no_commit_is_asked_for_again(hub: Hub) -> None:
    # As files of buckets, which this server does not have: such paths of repositories are resolved before.
    client = HubClient(huggingface_hub.HfFileSystem(endpoint=hub.endpoint, token=False, skip_instance_cache=True))
    path = "datasets/org/name/data/a.parquet"
    for files in (FILES, {**MOVED, "data/c.parquet": b"new"}):
        hub.commit(files)
        size = len(files["data/a.parquet"])
        assert client.info(path)["size"] == size
        assert {file.path: file.size for file in client.find("datasets/org/name/data", False)} == {
            f"datasets/org/name/{name}": len(data) for name, data in files.items() if name.count("/") == 1
        }
        opened = client.open(path)
        assert opened.facts.size == size
        assert bytes(opened.read(4, size)) == files["data/a.parquet"][4:]
        opened.close()


def test_files_at_a_commit_are_cached(hub: Hub, tmp_path: Any) -> None:
    for _ in range(2):
        loader, _ = opened(hub, cache=tmp_path)
        assert sorted(ids(loader)) == list(range(50))
        read = hub.requests["resolve"]
    assert hub.requests["resolve"] == read


def test_the_token_is_sent_to_the_endpoint_alone(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """A listing's next page may be anywhere, and the Hub's library would send the token there."""
    hub.token = "hf_only_for_the_hub"
    with hub_server() as other:
        other.commits, other.branches = hub.commits, hub.branches
        hub.next_page = other.next_page = other.endpoint + "{path}?{query}"
        for _ in range(2):
            loader, _ = opened(hub)
            assert sorted(ids(loader)) == list(range(50))
        assert other.requests["tree"] >= 2
        assert set(other.tokens) == {None}
        assert set(hub.tokens) == {f"Bearer {hub.token}"}
        lines = [record.getMessage() for record in caplog.records if "without the Hub's token" in record.getMessage()]
        assert len(lines) == 1
        assert other.endpoint.removeprefix("http://") in lines[0]
    assert "hf_only" not in caplog.text


def test_the_next_page_of_a_listing_on_the_endpoint_gets_the_token(hub: Hub) -> None:
    hub.token = "hf_of_the_hub"
    hub.next_page = hub.endpoint + "{path}?{query}"
    assert sorted(ids(opened(hub)[0])) == list(range(50))
    assert set(hub.tokens) == {f"Bearer {hub.token}"}


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("https://huggingface.co/api/x?page=2", True),
        ("https://router.huggingface.co/", True),
        ("https://huggingface.co:443/", True),
        ("https://huggingface.co:8443/", False),
        ("http://huggingface.co/", False),
        ("https://huggingface.co.example.org/", False),
        ("https://nothuggingface.co/", False),
        ("https://huggingface.co@example.org/", False),
    ],
)
def test_which_hosts_are_the_endpoints(url: str, same: bool) -> None:
    assert _same_home(url, "https://huggingface.co") is same
