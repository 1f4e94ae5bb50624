"""The errors of the package as its source has them: which say what is to be done, and which have it as data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch_dataloader_utils

PACKAGE = Path(torch_dataloader_utils.__file__).parent
_ADVICE = re.compile(
    r"(?:^|[.:;,(] |, or |, and )(?:also )?"
    r"(?i:use|add|set|pass|give|leave|choose|increase|name|write|create|put|call|install|read)\b"
)


@dataclass(frozen=True)
class Message:
    """An error that is created in the source.

    Attributes:
        place: the module and the function.
        text: its literal parts; what is filled in is `{}`.
        has_remedies: whether it is given remedies.
        lines: in which the module creates it.
    """

    place: str
    text: str
    has_remedies: bool
    lines: range

    @property
    def advises(self) -> bool:
        """Whether its text says what is to be done."""
        return bool(_ADVICE.search(self.text))


def messages() -> Iterator[Message]:
    """All errors of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        yield from _in(ast.parse(path.read_text()), name, "")


def _in(node: ast.AST, module: str, function: str) -> Iterator[Message]:
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ""
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id.endswith("Error"):
            text = " ".join(map(_text, child.args))
            lines = range(child.lineno, (child.end_lineno or child.lineno) + 1)
            has_remedies = any(word.arg == "remedies" for word in child.keywords)
            yield Message(f"{module}:{function}", text, has_remedies, lines)
        yield from _in(child, module, inside or function)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return "{}"
