"""Each call of a foreign client that may wait for a store or catalog is one that a time limit covers.

The calls are found in the source: those of what is imported from the clients' packages, and of their methods that ask a
store. A new one fails here until it is listed with what limits it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch_dataloader_utils

ROOT = Path(torch_dataloader_utils.__file__).parent
CLIENTS = (
    "deltalake",
    "huggingface_hub",
    "fsspec",
    "pyarrow.fs",
    "pyiceberg.catalog",
    "pyiceberg.io",
    "pyiceberg.table",
)
ASKING = {
    *("load_table", "new_input", "refresh", "load_as_version", "history", "get_add_actions"),
    *("get_file_info", "open_input_file", "open_input_stream", "open_output_stream"),
    *("cat_file", "cat_ranges", "pipe_file", "info", "ls", "find", "glob", "exists", "isdir", "isfile"),
}
NOT_CLIENTS = {
    "_LOG",
    "os.path",
    "Path(__file__).parent",
    "self._piece",
    "text.slice(at, min(_LOOK, text.size - at)).to_pybytes()",
}

TRIED = "Storage._tried or Storage._asked, which every use of a client goes through"
BUILT = "makes no request"
LIMITED = "`answered` around the whole of it"
LISTED: dict[str, dict[str, str]] = {
    "delta/entries.py": {"storage.find": TRIED},
    "delta/files.py": {"table.get_add_actions": "what was loaded with the table"},
    "delta/log.py": {"table.load_as_version": LIMITED, "DeltaTable": LIMITED},
    "filters/facts.py": {"LocalFileSystem": BUILT},
    "iceberg/catalog.py": {"storage.find": TRIED},
    "iceberg/clients.py": {
        "load_catalog": LIMITED,
        "client.load_table": f"{LIMITED}, unless it asks SQLite",
        "self._files(location).new_input": BUILT,
        "load_file_io": BUILT,
        "self._file.exists": "called by pyiceberg within `load_table`",
    },
    "iceberg/metadata.py": {"TableMetadataUtil.parse_obj": BUILT},
    "iceberg/snapshots.py": {"ancestors_of": BUILT},
    "sources/files.py": {"storage.find": TRIED, "glob_translate": BUILT},
    "sources/manifest_file.py": {"stringify_path": BUILT},
    "storage/clients.py": dict.fromkeys(
        (
            "self.fs.get_file_info",
            "pafs.FileSelector",
            "fs.open_input_file",
            "self._fs.open_input_file",
            "self._fs.get_file_info",
        ),
        TRIED,
    ),
    "storage/fsspec_client.py": {
        **dict.fromkeys(
            (
                "self.info",
                "self.fs.find",
                "self.fs.info",
                "self.fs.cat_file",
                "self._client.info",
                "fs.ls",
                "self.fs.ls",
            ),
            TRIED,
        ),
        **dict.fromkeys(("pafs.S3FileSystem", "pafs.AwsStandardS3RetryStrategy"), BUILT),
        "self.fs.pipe_file": "`answered` in Storage.create",
        "sync": TRIED,
    },
    "storage/hub_client.py": {
        **dict.fromkeys(("self.info", "super().find", "self.fs.find", "super().info", "self.fs.info"), TRIED),
        **dict.fromkeys(("build_hf_headers", "get_session", "hf_raise_for_status"), TRIED),
        "HfApi": "`retried` around `at_commit`",
    },
    "storage/local_files.py": {"pafs.LocalFileSystem": BUILT},
    "storage/opening.py": {
        "url_to_fs": f"{LIMITED}; of local files without",
        **dict.fromkeys(("split_protocol", "available_protocols"), BUILT),
    },
    "storage/option_names.py": {"get_filesystem_class": BUILT},
    "storage/storage.py": {
        **dict.fromkeys(("pafs.PyFileSystem", "pafs.FSSpecHandler"), BUILT),
        "client.find": TRIED,
        "self.connect().open_output_stream": LIMITED,
    },
}


def foreign(name: str) -> bool:
    return any(name == client or name.startswith(f"{client}.") for client in CLIENTS)


def imported(tree: ast.AST) -> set[str]:
    """The names that stand for what is imported from the clients' packages."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names if foreign(alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            of = node.module
            names |= {a.asname or a.name for a in node.names if foreign(of) or foreign(f"{of}.{a.name}")}
    return names


def calls(tree: ast.AST) -> Iterator[str]:
    names = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        base: ast.expr = node.func
        while isinstance(base, ast.Attribute):
            base = base.value
        asks = isinstance(node.func, ast.Attribute) and node.func.attr in ASKING
        if asks and ast.unparse(node.func.value) in NOT_CLIENTS:  # type: ignore[attr-defined]
            continue
        if asks or (isinstance(base, ast.Name) and base.id in names):
            yield ast.unparse(node.func)


def test_each_call_that_may_wait_for_a_store_is_listed_with_its_limit() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(ROOT.rglob("*.py")):
        for call in calls(ast.parse(path.read_text())):
            found[path.relative_to(ROOT).as_posix()].add(call)
    assert {path: sorted(names) for path, names in found.items()} == {
        path: sorted(names) for path, names in LISTED.items()
    }
