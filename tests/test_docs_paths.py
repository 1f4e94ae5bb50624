"""What pages say of this repository is there: its files, make's targets and the package's names."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_dataloader_utils.feature import Feature

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torch_dataloader_utils"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages for who changes the package: there a path may begin at a room, and a name with a room or a class.
OF_THE_HOUSE = {"CONTRIBUTING.md", "design.md"}

SPAN = re.compile(r"`([^`\n]+)`")
COMMANDS = re.compile(r"^```(?:bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"^(?:\w+=\S+ )*make ([a-z-]+)", re.MULTILINE)
PATH = re.compile(r"(?:tests|docs|scripts|examples|benchmarks|torch_dataloader_utils|\.ci)/[\w./-]*")
FILE = re.compile(r"(?:[\w-]+/)*[\w-]+\.(?:py|sh|md|toml|txt|svg)|(?:[a-z_]+/)+[a-z_]*")
DATA = re.compile(r"[\w-]+\.(?:parquet|csv|json)")
FULL_NAME = re.compile(r"\btorch_dataloader_utils((?:\.\w+)+)")
NAME = re.compile(r"[a-z_]+(?:\.\w+)+|[A-Z]\w+\.\w+")
MADE = ("data/", "site/")  # by the examples, and by make
GONE = {"coming-from-0.2.0.md": {"splits"}}  # names of that version, which the page tells what to do without


def missing(page: str, text: str) -> list[str]:
    """What a page names that is not there."""
    return sorted({*_targets(text), *_paths(page, text), *_names(page, text)} - GONE.get(page, set()))


def _targets(text: str) -> Iterator[str]:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in (*SPAN.findall(text), *COMMANDS.findall(text)):
        for target in TARGET.findall(command):
            if target not in targets:
                yield f"make {target}"


def _paths(page: str, text: str) -> Iterator[str]:
    for span in SPAN.findall(text):
        for token in span.split():
            known = PATH.fullmatch(token) or (page in OF_THE_HOUSE and FILE.fullmatch(token))
            if known and token not in MADE and not any((base / token).exists() for base in (ROOT, PACKAGE)):
                yield token


def _names(page: str, text: str) -> Iterator[str]:
    names = [name.lstrip(".") for name in FULL_NAME.findall(text)]
    if page in OF_THE_HOUSE:
        spans = [span for span in SPAN.findall(text) if NAME.fullmatch(span)]
        spans = [span for span in spans if not FILE.fullmatch(span) and not DATA.fullmatch(span)]
        names += [span for span in spans if (PACKAGE / span.partition(".")[0]).is_dir() or not _is_foreign(span)]
    for name in names:
        if not (_is_of_a_class(name) if name[0].isupper() and "." in name else _resolves(name)):
            yield name


def _is_foreign(name: str) -> bool:
    """Whether the name is one of another package, such as torch's."""
    return name[0].islower() and importlib.util.find_spec(name.partition(".")[0]) is not None


def _resolves(name: str) -> bool:
    """Whether a dotted name below the package exists. Modules are not imported: they may need an extra."""
    path = PACKAGE.joinpath(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    try:
        pkgutil.resolve_name(f"{PACKAGE.name}.{name}")
    except (ImportError, AttributeError):
        return False
    return True


def _is_of_a_class(name: str) -> bool:
    """Whether a file defines the class and has its attribute."""
    owner, _, attribute = name.partition(".")
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    return any(re.search(rf"^class {owner}\b", text, re.M) and re.search(rf"\b{attribute}\b", text) for text in sources)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert missing(page.name, page.read_text()) == []


@pytest.mark.parametrize("page", GONE)
def test_what_is_allowed_to_be_gone_is_gone_and_named(page: str) -> None:
    assert all(not _resolves(name) for name in GONE[page])
    assert set(_names(page, (ROOT / "docs" / page).read_text())) >= GONE[page]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "quickstart.md"])
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`make tests` and `make test`", ["make tests"]),
        ("```bash\nmake nothing    # does it\nCI=1 make quick\n```", ["make nothing"]),
        ("`tests/no_such_folder` and `.venv/bin/python scripts/no.py`", ["scripts/no.py", "tests/no_such_folder"]),
        ("from torch_dataloader_utils.model import Rows", []),
        ("`torch_dataloader_utils.no_such_room.x`", ["no_such_room.x"]),
        ("`torch_dataloader_utils.model.NoSuchName`", ["model.NoSuchName"]),
    ],
)
def test_a_page_that_names_what_is_not_there_is_found(page: str, text: str, names: list[str]) -> None:
    assert missing(page, text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`options.py`, `options/groups.py` and `planning/`", ["options.py"]),
        ("`streaming/loader.py`", ["streaming/loader.py"]),
        ("`planning.rest`, `planning.stretch` and `torch.distributed`", ["planning.stretch"]),
        ("`no_such_room.rest`", ["no_such_room.rest"]),
        ("`RankPlan.joint`, `RankPlan.no_such` and `NoClass.joint`", ["NoClass.joint", "RankPlan.no_such"]),
    ],
)
def test_a_page_of_the_house_names_rooms_and_classes(text: str, names: list[str]) -> None:
    assert missing("design.md", text) == names


def test_the_design_page_has_all_that_the_core_asks_a_feature() -> None:
    table = (ROOT / "docs" / "design.md").read_text().partition("| it asks |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(name for name in vars(Feature) if not name.startswith("_"))
