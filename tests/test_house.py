"""The house rules that CONTRIBUTING.md states and a program can check; import-linter checks who may import whom."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "torch_dataloader_utils"
FILES = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    """The parsed files, made by the first test that needs them."""
    return {file: ast.parse(text) for file, text in FILES.items()}


Function = ast.FunctionDef | ast.AsyncFunctionDef

# Attributes of other projects' objects that have no public name. Each says beside its use why it is needed.
FOREIGN = {
    "distributed/meeting.py": {"dist.distributed_c10d._get_default_store"},
    "distributed/ranks.py": {"item._enable"},
    "executors/processes.py": {
        *("forkserver._forkserver", "server._forkserver_alive_fd", "server._forkserver_pid"),
        *("server._forkserver_address", "server._lock"),
    },
    "filters/bounds.py": {"file.partition._data"},
    "iceberg/clients.py": {"catalog._load_file_io"},
    "integrations/trl.py": {"trainer._tp_size", "trainer._metrics"},
    "iceberg/file_scan.py": {"entry.file.partition._data"},
    "iceberg/table_storage.py": {"LocalFileSystem._strip_protocol", "kind._strip_protocol"},
    "loader/accelerated.py": {
        *("_state().GradientState()._add_dataloader", "_state().GradientState()._remove_dataloader"),
    },
    "storage/fsspec_client.py": {"kind._find", "AsyncFileSystem._find"},
    "storage/opening.py": {"filesystem._strip_protocol"},
}
# Underscored, but documented.
PUBLIC = {"os._exit", "sys._getframe"}


def test_a_file_is_one_concept() -> None:
    """A concept of more than some 800 lines is rarely one; shorter files have no other limit."""
    assert {file: text.count("\n") for file, text in FILES.items() if text.count("\n") > 800} == {}


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def lines_of(function: Function) -> int:
    """The lines of a function besides its docstring; 0 for a signature without a body."""
    doc = function.body[0] if is_docstring(function.body[0]) else None
    if doc is not None and len(function.body) == 1:
        return 0
    of_doc = 0 if doc is None else (doc.end_lineno or 0) - doc.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - of_doc


def is_signature(function: Function) -> bool:
    """Whether calls of it run another function, so that its own body only says so."""
    return any(getattr(getattr(each, "func", None), "id", "") == "implemented_by" for each in function.decorator_list)


def test_no_function_has_more_than_40_lines() -> None:
    long = {
        (file, function.name): lines_of(function)
        for file, tree in trees().items()
        for function in functions(tree)
        if lines_of(function) > 40 and not is_signature(function)
    }
    assert long == {}


def test_a_class_name_has_one_meaning() -> None:
    files = defaultdict(list)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(file)
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


def names_of(kind: ast.ClassDef) -> set[str]:
    """What a class defines, and what its methods set."""
    own = {node.name for node in kind.body if isinstance(node, Function)}
    for node in ast.walk(kind):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    return own


def reaches(node: ast.AST, own: frozenset[str] = frozenset()) -> Iterator[str]:
    """The private attributes of objects of other classes than the one whose code it is.

    A function beside a class may be what the package, but no user, asks of its objects.
    """
    if isinstance(node, ast.ClassDef):
        own = frozenset(names_of(node))
    if isinstance(node, ast.Module):
        beside = frozenset().union(*(names_of(child) for child in node.body if isinstance(child, ast.ClassDef)))
        for child in node.body:
            yield from reaches(child, beside if isinstance(child, Function) else own)
        return
    if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("_"):
        value = node.value
        itself = isinstance(value, ast.Name) and value.id in ("self", "cls")
        above = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "super"
        if not (itself or above or node.attr in own):
            yield ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from reaches(child, own)


def test_no_code_reaches_into_an_object_of_another_class() -> None:
    found = {file: set(reaches(tree)) - PUBLIC for file, tree in trees().items()}
    assert {file: names for file, names in found.items() if names} == FOREIGN


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("plan._rows", ["plan._rows"]),
        ("class A:\n  def f(self, other):\n    return self._x + other._y", ["other._y"]),
        ("class A:\n  _y = 1\n  def f(self, other):\n    return other._y + super()._z", []),
        ("class A:\n  _y = 1\ndef f(a):\n  return a._y + a._z", ["a._z"]),
        ("frame._repr_html_()", []),
    ],
)
def test_what_reaches_into_another_object_is_found(code: str, found: list[str]) -> None:
    assert list(reaches(ast.parse(code))) == found


def test_few_lines_import() -> None:
    """A file that holds one concept needs few others: below 6 % in the long run, and never again more than today."""
    lines = sum(text.count("\n") for text in FILES.values())
    imports = sum(
        (node.end_lineno or 0) - node.lineno + 1
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    assert imports / lines < 0.0768
