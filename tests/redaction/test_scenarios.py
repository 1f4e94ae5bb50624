"""No secret leaves a public call, whoever holds it and whatever fails: end to end, with real clients and failures."""

from __future__ import annotations

import base64
import io
import json
import logging
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from tests.redaction.hostile_server import hostile_server
from torch_dataloader_utils import IcebergDataset, StructuredDataset
from torch_dataloader_utils.storage import retries

pytest.importorskip("aiohttp")
pytest.importorskip("s3fs")

CORE = "hunter2"  # a part of every secret here: it must not appear, nor what base64 or quoting makes of it
PASSWORDS = {
    "plain": f"{CORE}{CORE}",
    "short": CORE,
    "at": f"{CORE}@{CORE}",
    "two-at": f"a@{CORE}@b",
    "slash": f"x/{CORE}/y",
    "quotes": f'it\'s"{CORE}"',
    "bracket": f"({CORE})",
    "space": f"my {CORE} word",
    "hash": f"#{CORE}#1",
    "question": f"{CORE}?sig={CORE}",
    "quoted": quote(f"@{CORE}/&", safe=""),
    "percent": f"100%{CORE}%",
    "colon": f"{CORE}:{CORE}",
    "plus": f"{CORE}+/{CORE}==",
    "words": f"ünï{CORE}",
}
PLAIN = PASSWORDS["plain"]
BASIC = base64.b64encode(f"user:{PLAIN}".encode()).decode()
NEEDLES = (CORE, BASIC, BASIC[8:20], base64.b64encode(PLAIN.encode()).decode()[:12])


def web_places(port: int, folder: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Where a secret of a web address may be: the URL, and the storage options."""
    here, file = f"127.0.0.1:{port}", f"{folder}/a.parquet"
    plain = f"http://{here}/{file}"
    return {
        "password": (f"http://user:{PLAIN}@{here}/{file}", {}),
        "token": (f"http://{PLAIN}@{here}/{file}", {}),
        "aws-query": (f"{plain}?X-Amz-Credential={PLAIN}&X-Amz-Signature={PLAIN}&X-Amz-Date=20260101T000000Z", {}),
        "azure-query": (f"{plain}?sv=2024-01-01&se=2026-01-01&sp=r&sig={PLAIN}", {}),
        "google-query": (f"{plain}?Expires=1&GoogleAccessId={PLAIN}&Signature={PLAIN}", {}),
        "cloudfront-query": (f"{plain}?Policy={PLAIN}&Key-Pair-Id={PLAIN}&Signature={PLAIN}", {}),
        "token-query": (f"{plain}?token={PLAIN}", {}),
        "headers": (plain, {"headers": {"Authorization": f"Basic {BASIC}"}}),
        "bearer": (plain, {"client_kwargs": {"headers": {"Authorization": f"Bearer {PLAIN}"}}}),
        "api-key": (plain, {"headers": {"X-Api-Key": PLAIN}}),
        "cookie": (plain, {"client_kwargs": {"cookies": {"session": PLAIN}}}),
    }


WEB_PLACES = list(web_places(0, ""))


def fails_to_transform(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        raise ValueError(f"no such token as {PLAIN}")
    return batch


FAILURES: dict[str, tuple[str, dict[str, Any]]] = {
    "401": ("401", {}),
    "403": ("403", {}),
    "404": ("404", {}),
    "damaged": ("damaged", {}),
    "garbage": ("garbage", {}),
    "column": ("good", {"columns": ["nope"]}),
    "filter": ("good", {"filters": [("nope", "=", 1)]}),
    "option": ("good", {"colums": ["a"]}),
    "transform": ("good", {"transform": fails_to_transform}),
    "processes": ("good", {"transform": fails_to_transform, "num_workers": 1, "worker_mode": "processes"}),
    "null": ("good", {"columns": ["n"]}),
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": range(99), "n": pa.array([None, *range(98)], pa.int64())}), sink, row_group_size=50)
    with hostile_server(sink.getvalue()) as number:
        yield number


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait for no server: what a client says about its last try is what it says about the first."""
    monkeypatch.setattr(retries, "_TRIES", 1)
    retries._retrying.cache_clear()
    yield
    retries._retrying.cache_clear()


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number: int = taken.getsockname()[1]
    return number


def shown(error: BaseException) -> str:
    """All that Python, or a program that looks at it, prints of an error."""
    texts, pending, seen = ["".join(traceback.format_exception(error))], [error], set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        texts += [str(each), repr(each), repr(each.args), repr(getattr(each, "__notes__", ()))]
        pending += [link for link in (each.__cause__, each.__context__) if link is not None]
    return "\n".join(texts)


def read(create: Callable[[], tuple[Any, Any]], caplog: pytest.LogCaptureFixture) -> tuple[str, BaseException | None]:
    """What a program that reads once can see, and the error it gets."""
    with caplog.at_level(logging.DEBUG, "torch_dataloader_utils"):
        try:
            loader, dataset = create()
            for _ in loader:
                pass
        except Exception as error:  # noqa: BLE001 - which one, each scenario checks
            ours = [record for record in caplog.records if record.name.startswith("torch_dataloader_utils")]
            return shown(error) + "".join(map(logging.Formatter().format, ours)), error
    return caplog.text + everything(loader, dataset), None


def everything(loader: Any, dataset: Any) -> str:
    """All that may be kept of a loader, its plan and its state."""
    description, plan = dataset.describe(), dataset.plan()
    kept = [
        repr(dataset), repr(loader), dataset._repr_html_(), loader._repr_html_(), str(description), repr(description),
        description._repr_html_(), repr(plan), plan._repr_html_(), repr(plan.table()), repr(dataset._source.files),
        repr(dataset._source), repr(dataset.rows_of(0, 0)), json.dumps(loader.state_dict()), repr(dataset._options),
        dataset.metrics_text(), repr(dataset.verdict()),
        pickle.dumps(plan).decode("latin1"), repr(pickle.dumps(loader.state_dict())),
        repr(pickle.loads(pickle.dumps(plan))),
    ]  # fmt: skip
    return "\n".join(kept)


def reveals_nothing(text: str) -> None:
    assert not [text[max(0, text.index(each) - 80) :][:160] for each in NEEDLES if each in text]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("place", WEB_PLACES)
def test_a_web_server(place: str, failure: str, port: int, caplog: pytest.LogCaptureFixture) -> None:
    if failure == "processes" and place not in ("password", "aws-query", "headers"):
        pytest.skip("a worker process takes a second to start")
    folder, options = FAILURES[failure]
    url, storage_options = web_places(port, folder)[place]
    create = lambda: StructuredDataset.create_dataloader(url, storage_options=storage_options, **options)  # noqa: E731
    text, error = read(create, caplog)
    assert error is not None
    reveals_nothing(text)


@pytest.mark.parametrize("place", WEB_PLACES)
def test_a_web_server_that_works(place: str, port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, storage_options = web_places(port, "good")[place]
    create = lambda: StructuredDataset.create_dataloader(  # noqa: E731
        url, storage_options=storage_options, columns=["a"], num_workers=0
    )
    text, error = read(create, caplog)
    assert error is None, text
    dataset = create()[1]
    reveals_nothing(text + dataset.plan_page(tmp_path / "plan.html").read_text())


@pytest.mark.parametrize("place", WEB_PLACES)
def test_a_manifest_file(place: str, port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, storage_options = web_places(port, "good")[place]
    manifest = tmp_path / "index.manifest"
    create = lambda: StructuredDataset.create_dataloader(  # noqa: E731
        url, storage_options=storage_options, manifest=manifest, columns=["a"], num_workers=0
    )
    text, error = read(create, caplog)
    assert (error is None) == manifest.exists() == ("?" not in url and "@" not in url)
    reveals_nothing(text + (manifest.read_bytes().decode("latin1") if manifest.exists() else ""))


@pytest.mark.parametrize("place", ["password", "aws-query", "headers"])
def test_a_state_of_other_data(place: str, port: int, caplog: pytest.LogCaptureFixture) -> None:
    url, storage_options = web_places(port, "good")[place]
    state = StructuredDataset.create_dataloader(url, storage_options=storage_options, columns=["a"])[0].state_dict()

    def create() -> tuple[Any, Any]:
        made = StructuredDataset.create_dataloader([url, url.replace("a.parq", "b.parq")], columns=["a"],
                                                   storage_options=storage_options)  # fmt: skip
        made[0].load_state_dict(state)
        return made

    text, error = read(create, caplog)
    assert error is not None
    reveals_nothing(text)


@pytest.mark.parametrize("place", ["password", "aws-query", "headers"])
def test_a_worker_of_torchs_own_loader(place: str, port: int, caplog: pytest.LogCaptureFixture) -> None:
    url, storage_options = web_places(port, "good")[place]
    _, dataset = StructuredDataset.create_dataloader(
        url, storage_options=storage_options, columns=["a"], transform=fails_to_transform
    )
    copy = pickle.loads(pickle.dumps(dataset))
    text, error = read(lambda: (DataLoader(copy, batch_size=None), copy), caplog)
    assert error is not None
    reveals_nothing(text)


@pytest.mark.parametrize("form", ["http://user:{}@{}/403/a.parquet", "http://{}@{}/404/a.parquet",
                                  "http://{1}/403/a.parquet?token={0}", "s3://key:{}@{}/a.parquet",
                                  "ftp://me:{}@{}/a.parquet", "zip://a.csv::http://me:{}@{}/404/a.zip"])  # fmt: skip
@pytest.mark.parametrize("kind", PASSWORDS)
def test_any_password_in_a_url(
    form: str, kind: str, port: int, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    if form.startswith("http://{}") and set(PASSWORDS[kind]) & set("/?#"):
        pytest.skip("no address of the web: what looks like a token is a host and a path")
    url = form.format(PASSWORDS[kind], f"127.0.0.1:{closed_port if form.startswith('ftp') else port}")
    text, error = read(lambda: StructuredDataset.create_dataloader(url), caplog)
    assert error is not None
    reveals_nothing(text)


S3_PLACES: dict[str, dict[str, Any]] = {
    "secret": {"key": "AKIA", "secret": PLAIN},
    "odd": {"key": f"{CORE}'s", "secret": f"{CORE}+/'\"{CORE} )"},
    "session": {"key": PLAIN, "secret": PLAIN, "token": PLAIN},
    "boto": {"aws_access_key_id": PLAIN, "aws_secret_access_key": PLAIN},
    "unknown": {"key": "AKIA", "secret": PLAIN, "acces_key": PLAIN},
    "not-a-dict": {"key": "AKIA", "secret": PLAIN, "client_kwargs": PLAIN},
    "not-an-option-of-boto": {"key": "AKIA", "secret": PLAIN, "client_kwargs": {"password": PLAIN}},
}


@pytest.mark.parametrize("failure", ["403", "404", "host"])
@pytest.mark.parametrize("place", S3_PLACES)
def test_an_object_store(
    place: str, failure: str, port: int, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = f"http://127.0.0.1:{closed_port if failure == 'host' else port}"
    options = {"endpoint_url": endpoint, "config_kwargs": {"retries": {"max_attempts": 1}}, **S3_PLACES[place]}
    text, error = read(
        lambda: StructuredDataset.create_dataloader(f"s3://{failure}/a.parquet", storage_options=options), caplog
    )
    assert error is not None
    reveals_nothing(text)


def test_credentials_of_the_environment(
    port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", PLAIN)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLAIN)
    options = {"endpoint_url": f"http://127.0.0.1:{port}"}
    text, error = read(lambda: StructuredDataset.create_dataloader("s3://403/a", storage_options=options), caplog)
    assert error is not None
    reveals_nothing(text)


CATALOGS: dict[str, dict[str, Any]] = {
    "credential": {"type": "rest", "credential": f"me:{PLAIN}"},
    "token": {"type": "rest", "token": PLAIN},
    "header": {"type": "rest", "header.Authorization": f"Basic {BASIC}", "header.X-Tenant": PLAIN},
    "uri": {"type": "rest", "uri": f"http://user:{PLAIN}@{{}}/?token={PLAIN}"},
    "at": {"type": "rest", "uri": f"http://user:{PASSWORDS['at']}@{{}}"},
    "keys": {"type": "rest", "token": PLAIN, "s3.access-key-id": PLAIN, "s3.secret-access-key": PLAIN},
    "sqlite": {"type": "sql", "uri": f"sqlite:////nowhere/x.db?password={PLAIN}"},
    "unknown-driver": {"type": "sql", "uri": f"nope+nope://user:{PASSWORDS['at']}@{{}}/db"},
    "not-a-url": {"type": "sql", "uri": f"user:{PLAIN}", "password": PLAIN},
    "unknown-type": {"type": PLAIN, "token": PLAIN},
    "not-text": {"type": "rest", "token": [PLAIN]},
    "hive": {"type": "hive", "uri": f"thrift://me:{PLAIN}@{{}}"},
    "glue": {"type": "glue", "glue.endpoint": "http://{}", "glue.access-key-id": PLAIN, "glue.region": "us-east-1",
             "glue.max-retries": "1",
             "glue.secret-access-key": PLAIN},
}  # fmt: skip


@pytest.mark.parametrize("answers", [True, False], ids=["refused", "closed"])
@pytest.mark.parametrize("kind", CATALOGS)
def test_a_catalog(kind: str, answers: bool, port: int, closed_port: int, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyiceberg")
    here = f"127.0.0.1:{port if answers else closed_port}"
    given = {"uri": "http://{}", **CATALOGS[kind]}
    config = {name: value.replace("{}", here) if isinstance(value, str) else value for name, value in given.items()}
    text, error = read(
        lambda: IcebergDataset.create_dataloader("ns.table", catalog_config={"name": "far", **config}), caplog
    )
    assert error is not None
    reveals_nothing(text)


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "azure-key": ("az://container/a", {"account_name": "me", "account_key": f"{PLAIN}!"}),
    "azure-connection": ("az://container/a", {"connection_string": f"AccountName=me;AccountKey={PLAIN};Bad"}),
    "azure-sas": ("az://container/a", {"account_name": "me", "sas_token": f"?sv=1&sig={PLAIN}", "nope": PLAIN}),
    "google-file": ("gs://bucket/a", {"token": f"/nowhere/{PLAIN}.json"}),
    "google-dict": ("gs://bucket/a", {"token": {"type": "service_account", "private_key": PLAIN}}),
    "google-unknown": ("gs://bucket/a", {"tokens": PLAIN}),
    "ftp": ("ftp://127.0.0.1:{}/a", {"username": "me", "password": PLAIN}),
    "unknown": ("nope://bucket/a", {"password": PLAIN}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_stores(kind: str, closed_port: int, caplog: pytest.LogCaptureFixture) -> None:
    url, options = OTHERS[kind]
    text, error = read(
        lambda: StructuredDataset.create_dataloader(url.format(closed_port), storage_options=options), caplog
    )
    assert error is not None
    reveals_nothing(text)
