"""Every Python block of the README and the documentation runs, and the tables of the documentation are complete.

The blocks of a page are one program, run from top to bottom. A block that calls `init_process_group` is a program of
its own, run by two processes. The lines of shell blocks that use `tdu` run one after another. See CONTRIBUTING.md.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

import torch_dataloader_utils as tdu
from tests import forkrun
from torch_dataloader_utils import DataLoaderUtilsError, errors
from torch_dataloader_utils.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLUMNS = 106  # of code on a page, in a window of 1400 pixels: see docs/stylesheets/site.css
LAUNCHED = "init_process_group"
# The program ends here, without Python's own shutdown: gloo's threads may still release what the last all_reduce held,
# and a C++ thread that asks for the GIL then aborts the process (seen once in 40 runs of plain DDP without a loader).
LEAVE = "\nimport os\nos._exit(0)\n"


def blocks(page: Path, launched: bool) -> list[str]:
    """The page's programs, each with its lines where the page has them, so that tracebacks name the page's line."""
    text = page.read_text()
    found = [(text.count("\n", 0, match.start(1)), match[1]) for match in BLOCK.finditer(text)]
    return ["\n" * line + code for line, code in found if (LAUNCHED in code) == launched]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The current directory: holds what the quickstart makes, `data/` and `survey.parquet`."""
    monkeypatch.chdir(tmp_path)
    exec(blocks(ROOT / "docs" / "quickstart.md", launched=False)[0], {})
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, launched=False)], ids=lambda page: page.name)
def test_page_runs(page, data, monkeypatch):
    module = types.ModuleType("page")  # importable, so that what it defines can be pickled
    monkeypatch.setitem(sys.modules, "page", module)
    for code in blocks(page, launched=False):
        exec(compile(code, page, "exec"), vars(module))


def commands(page: Path) -> list[str]:
    """The lines of the page's shell blocks, in blocks that use `tdu`."""
    return [line for block in SHELL.findall(page.read_text()) if "tdu " in block for line in block.splitlines()]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_of_a_page_run(page, data):
    """In this process where they are plain commands, because each process takes seconds to import torch."""
    for line in commands(page):
        words = shlex.split(line, comments=True)
        if words[0] == "tdu" and not {"|", ">"}.intersection(words):
            done = CliRunner().invoke(app, words[1:])
            assert done.exit_code == 0, f"{line}: {done.output}"
        else:
            function = f'tdu() {{ {sys.executable} -m torch_dataloader_utils "$@"; }}'
            shell = ["bash", "-c", f"set -e; {function}; {line}"]
            subprocess.run(shell, check=True, capture_output=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES for number in range(len(blocks(page, launched=True)))],
    ids=lambda value: value.name if isinstance(value, Path) else str(value),
)
def test_launched_program_runs(page, number, data):
    Path("train.py").write_text(blocks(page, launched=True)[number] + LEAVE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*forkrun.command(), "train.py"], env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_fits_its_box(page):
    code = re.findall(r"^```\w+\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert [line for line in "".join(code).splitlines() if len(line) > COLUMNS] == []


def table_rows(page: str) -> list[list[str]]:
    """The cells of each table row of the page whose first cell is code, with the code marks taken off."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return [[cell.strip("`") for cell in row] for row in rows]


def test_install_page_lists_each_extra_for_users():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ours = {"demo", "test", "test-stores", "test-launchers", "test-browser", "docs", "release", "dev"}
    assert {row[0] for row in table_rows("cookbook/install.md")} == set(extras) - ours


def test_troubleshooting_page_lists_each_error_with_its_builtin():
    listed = {row[0]: row[1] for row in table_rows("troubleshooting.md")}
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = [kind for kind in kinds if issubclass(kind, DataLoaderUtilsError) and kind is not DataLoaderUtilsError]
    assert set(listed) == {error.__name__ for error in raised}
    for error in raised:
        builtins = [base.__name__ for base in error.__bases__ if base is not DataLoaderUtilsError]
        assert re.findall(r"\w+", listed[error.__name__]) == builtins


def test_links_of_the_readme_are_absolute_on_pypi():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = (ROOT / "README.md").read_text()
    relative = re.findall(r"\]\((?!https:|#)([^)]+)\)", text)
    for rule in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    repository = project["project"]["urls"]["Repository"].removeprefix("https://github.com/")
    for path in relative:
        raw = f"https://raw.githubusercontent.com/{repository}/main/{path}"
        picture = path.endswith((".svg", ".png"))
        assert (raw if picture else f"https://github.com/{repository}/blob/main/{path}") in targets
    assert all(target.startswith(("https://", "#")) for target in targets)


def test_speeds_of_the_readme_are_those_of_the_benchmarks():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    readme = {row[0]: row[-1] for row in rows if row[-1].endswith("%")}
    measured = {
        "this package": "ours",
        "Hugging Face datasets": "hf_batched",
        "torchdata.nodes": "torchdata_nodes",
        "Ray Data": "ray_data",
        "Daft": "daft_arrow",
        "Polars, by hand": "polars_scan",
        "petastorm": "petastorm",
        "Lance": "lance",
        "Grain": "grain_parquet",
        "LitData": "litdata_parquet",
    }
    cases = json.loads((ROOT / "benchmarks" / "race.json").read_text())["cases"]
    in_order = [cases[case] for case in cases if json.loads(case)[1:] == [1024, 0, False]]
    for loader, name in measured.items():
        shares = [figures[name]["share"] for figures in in_order if "share" in figures.get(name, {})]
        assert readme.pop(loader) == f"{min(shares) * 100:.0f}–{max(shares) * 100:.0f}%", loader
    assert not readme


def documented(page: str) -> set[str]:
    """The full names of what a page of the reference has from docstrings; a module without members stands for all."""
    found = set()
    for block in (ROOT / "docs" / page).read_text().split("::: ")[1:]:
        members = re.search(r" members: \[(.*)\]", block)
        owner = block.split()[0]
        found |= {f"{owner}.{name}" for name in members[1].split(", ")} if members else {owner}
    return found


def test_the_reference_has_each_public_name_on_one_of_its_pages():
    calls, extends = documented("reference.md"), documented("extending-reference.md")
    assert calls & extends == set()
    homes = {name: getattr(value, "__module__", "") for name in tdu.__all__ for value in [getattr(tdu, name)]}
    missing = [
        name
        for name, home in homes.items()
        if {f"{tdu.__name__}.{name}", home, f"{home}.{name}"}.isdisjoint(calls | extends)
    ]
    assert missing == []


def test_each_page_is_in_the_navigation_and_in_one_tab():
    pages = re.findall(r"[ :]([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(pages) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES[1:])


# What people search for -> the page that answers it, which has the word.
SEARCHED = {
    "standardise": "preprocessing",
    "standardize": "preprocessing",
    "unknown category": "preprocessing",
    "sigterm": "cookbook/preemption",
    "preemption": "cookbook/preemption",
    "sft": "trainers",
    "chat": "chats",
    "inference": "cookbook/inference",
    "trainpipeline": "cookbook/recommender",
    "torchmetrics": "cookbook/evaluation",
    "drop_last": "coming-from-torch-dataloader",
    "hydra": "config-files",
}


@pytest.mark.parametrize(("words", "page"), SEARCHED.items())
def test_a_page_has_the_words_by_which_it_is_searched(words, page):
    assert words in (ROOT / "docs" / f"{page}.md").read_text().lower()


def test_the_site_links_to_the_repository_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nrepo_url: {project['urls']['Repository']}\n" in (ROOT / "mkdocs.yml").read_text()


def test_no_link_between_pages_is_broken():
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # code has no links
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"
