"""The package as it is installed and imported."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata, resources
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name

import torch_dataloader_utils
from torch_dataloader_utils.kernels import library

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

EXPORTED = torch_dataloader_utils.__all__


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_names_resolve(name):
    assert name == "Batch" or getattr(torch_dataloader_utils, name).__name__ == name  # an alias has no name
    assert name in dir(torch_dataloader_utils)


def test_type_checkers_see_each_exported_name_where_it_is_loaded_from():
    tree = ast.parse((ROOT / "torch_dataloader_utils/__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {item.name: node.module for node in imports for item in node.names}
    ours = {name: module for name, module in seen.items() if module.startswith("torch_dataloader_utils")}
    assert sorted(ours) == sorted(torch_dataloader_utils.__all__)
    lazy = {name: f"torch_dataloader_utils.{home}" for name, home in torch_dataloader_utils._HOMES.items()}
    assert {name: module for name, module in ours.items() if not name.endswith(("Error", "Errors", "Warning"))} == lazy


def test_exports_that_need_no_extra_are_imported_without_one():
    """Of the Iceberg classes, too, so that annotations cost no extra."""
    block = "import sys; sys.modules['pyiceberg'] = None; "
    assert subprocess.run([sys.executable, "-c", f"{block}from torch_dataloader_utils import *"]).returncode == 0


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = torch_dataloader_utils.no_such_name


@pytest.mark.parametrize("module", ["", ".options", ".planning", ".executors.processes"])
def test_workers_do_not_import_torch(module):
    program = f"import sys, torch_dataloader_utils{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


LATE = (
    "numpy.ma",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.acero",
    "pandas",
    "torch_dataloader_utils.sources.combine",
)


def test_what_takes_long_to_import_waits_until_it_is_needed(tmp_path):
    """Neither the import nor reading plain files, shuffled or not, needs Arrow's functions or pandas."""
    pq.write_table(pa.table({"id": range(100), "x": [0.5] * 100}), tmp_path / "a.parquet")
    program = f"""
import sys
from torch_dataloader_utils import StructuredDataset
print([name for name in {LATE} if name in sys.modules])
for shuffle in (False, True):
    loader, _ = StructuredDataset.create_dataloader({str(tmp_path)!r}, batch_size=10, shuffle=shuffle)
    assert sum(len(batch["id"]) for batch in loader) == 100
    print([name for name in {LATE} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n[]\n"


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True, "strings": "bytes"},
        {"shuffle": True, "lists": "padded", "columns": ["tokens"]},
        {"shuffle": True, "output_format": "arrow"},
        {"strings": "bytes", "sharding": "strided", "even": "pad", "valid_key": "real", "num_ranks": 2, "rank": 0},
        {"nulls": "drop", "columns": ["score", "id"]},
    ],
    ids=str,
)
def test_pandas_is_not_imported_to_read_text_and_lists(tmp_path, options):
    """It takes 0.3 s and 40 MB, and pyarrow imports it for much that could do without it."""
    columns = {"id": range(100), "text": ["a"] * 100, "tokens": [[1, 2], [3]] * 50, "score": [0, None] * 50}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=10)
    if "columns" not in options:
        options = options | {"columns": ["id", "text", "tokens"]}
    program = f"""
import sys
from torch_dataloader_utils import StructuredDataset
loader, _ = StructuredDataset.create_dataloader({str(tmp_path)!r}, batch_size=10, **{options!r})
assert list(loader)
print([name for name in ("pandas", "numpy.ma") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_version_is_that_of_the_metadata():
    assert torch_dataloader_utils.__version__ == metadata.version("torch-dataloader-utils")


def test_types_are_shipped():
    assert resources.files(torch_dataloader_utils).joinpath("py.typed").is_file()


LIBRARY = (".library", ".sha256")


@pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
def test_wheel_and_sdist_hold_all_files_of_the_package(builder):
    packed = {item.distribution_path for item in builder(str(ROOT)).recurse_included_files()}
    paths = (ROOT / "torch_dataloader_utils").rglob("*")
    ours = {str(path.relative_to(ROOT)) for path in paths if path.is_file() and path.suffix not in (".pyc", *LIBRARY)}
    assert {".py", ".js", ".c"} < {Path(path).suffix for path in ours}
    assert ours <= packed


@pytest.mark.parametrize("compiler", ["cc", "no-such-compiler", "false"])
def test_a_wheel_holds_the_library_if_it_can_be_compiled(compiler, tmp_path, monkeypatch, capsys):
    if compiler == "cc" and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    monkeypatch.setenv("CC", compiler)
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    compiled = {name for name in ZipFile(wheel).namelist() if name.endswith(LIBRARY)}
    found, files = compiler == "cc", [str(path.relative_to(ROOT)) for path in library.paths().values()]
    assert compiled == ({*files, *(f"{file}.sha256" for file in files)} if found else set())
    tag = Path(wheel).stem.split("-", 2)[-1]
    assert tag == (f"py3-none-{next(sys_tags()).platform}" if found else "py3-none-any")
    told = capsys.readouterr().err
    for source in library.paths():
        assert (f"{source.name} was not compiled, so the package is slower" in told) is not found


@pytest.mark.parametrize("compiler", ["cc", "no-such-compiler"])
def test_a_wheel_for_a_named_platform_has_all_libraries_or_is_not_built(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("WHEEL_PLATFORM", "manylinux_2_28_x86_64")
    build = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    if shutil.which(compiler) is None:
        with pytest.raises(RuntimeError, match=r"buckets\.c was not compiled for manylinux_2_28_x86_64: there is no C"):
            next(build)
        return
    wheel = next(build)
    assert wheel.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    compiled = [name for name in ZipFile(wheel).namelist() if name.endswith(LIBRARY)]
    assert len(compiled) == 2 * len(library.paths())


def test_the_sdist_holds_what_builds_the_wheels_and_nothing_else(tmp_path):
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(sdist) as packed:
        names = {name.split("/", 1)[1] for name in packed.getnames()}
    beside = {name for name in names if not name.startswith("torch_dataloader_utils/")}
    expected = ("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md", "hatch_build.py", "pyproject.toml")
    assert beside == {*expected, ".gitignore"}
    assert not [name for name in names if name.endswith((*LIBRARY, ".pyc"))]


def test_extras():
    assert set(PROJECT["optional-dependencies"]) == {
        *("remote", "s3", "gcs", "azure", "http", "cache", "iceberg", "delta", "hf"),
        *("cli", "demo", "progress", "pandas", "polars", "images", "text", "docs", "release", "dev"),
        *("test", "test-stores", "test-launchers", "test-browser"),
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


def test_the_conda_recipe_needs_what_the_package_needs():
    recipe = yaml.safe_load(re.sub(r"\$\{\{.*?\}\}", "_", (ROOT / "conda" / "recipe.yaml").read_text()))
    runs = {name: versions for name, _, versions in (each.partition(" ") for each in recipe["requirements"]["run"])}
    needs = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}
    assert runs.pop("python") == PROJECT["requires-python"]
    assert {name.replace("pytorch", "torch"): SpecifierSet(versions) for name, versions in runs.items()} == needs


def test_files_are_read_without_what_only_unix_has():
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "without_unix.py"], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
