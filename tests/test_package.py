"""The package as it is installed and imported."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import torch_dataloader_utils

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

EXPORTED = [
    "BatchTimeoutError",
    "BlockEvent",
    "CatalogError",
    "CheckpointMismatchError",
    "ColumnNotFoundError",
    "CountsRequiredError",
    "DataFileInfo",
    "DataLoaderUtilsError",
    "DataNotFoundError",
    "Description",
    "EmptyDatasetError",
    "FileChangedError",
    "FileReadError",
    "FileSnapshot",
    "IcebergDataFileInfo",
    "IcebergDataset",
    "MissingExtraError",
    "NullValueError",
    "OptionError",
    "PassEvent",
    "PlanMismatchError",
    "RoundRobinSplitStrategy",
    "SchemaMismatchError",
    "Shard",
    "ShardingError",
    "SizeBalancedSplitStrategy",
    "SnapshotCursor",
    "SnapshotError",
    "Split",
    "StaleIteratorError",
    "StructuredDataset",
    "TableDataset",
    "TableFile",
    "TableSnapshot",
    "TableSource",
    "TargetSizeSplitStrategy",
    "UnknownOptionError",
    "UnknownValueError",
    "UnsupportedTypeError",
    "WorkerError",
    "combine",
    "deletion_vector",
    "distribute_shards",
    "merge_gen_kwargs",
    "merge_state_dicts",
    "number_of_shards",
    "register_format",
    "register_policy",
    "shuffle_gen_kwargs",
    "split_gen_kwargs",
    "streaming_shard",
]


def test_exported_names():
    assert torch_dataloader_utils.__all__ == EXPORTED


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_names_resolve(name):
    assert getattr(torch_dataloader_utils, name).__name__ == name
    assert name in dir(torch_dataloader_utils)


def test_type_checkers_see_each_exported_name_where_it_is_loaded_from():
    tree = ast.parse((ROOT / "torch_dataloader_utils/__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {item.name: node.module for node in imports for item in node.names if item.name == item.asname}
    assert sorted(homes) == EXPORTED
    for name, module in homes.items():
        assert getattr(importlib.import_module(module), name) is getattr(torch_dataloader_utils, name)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = torch_dataloader_utils.no_such_name


@pytest.mark.parametrize("module", ["", ".options", ".planning", ".executors.processes"])
def test_workers_do_not_import_torch(module):
    program = f"import sys, torch_dataloader_utils{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_version_is_that_of_the_metadata():
    assert torch_dataloader_utils.__version__ == metadata.version("torch-dataloader-utils") == PROJECT["version"]


def test_types_are_shipped():
    assert resources.files(torch_dataloader_utils).joinpath("py.typed").is_file()


def test_extras():
    assert set(PROJECT["optional-dependencies"]) == {
        *("remote", "s3", "gcs", "azure", "http", "cache", "iceberg"),
        *("demo", "progress", "test", "test-stores", "test-launchers", "docs", "dev"),
    }


def test_every_dependency_has_an_exact_version_inside_its_range():
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {canonicalize_name(name): version for name, version in lines}
    wanted = [
        *PROJECT["dependencies"],
        *(item for extra in PROJECT["optional-dependencies"].values() for item in extra),
    ]
    for requirement in map(Requirement, wanted):
        if requirement.name != PROJECT["name"]:
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier
