"""Writes the options into the signatures and docstrings of the calls that make loaders.

    python scripts/write_signatures.py          # write
    python scripts/write_signatures.py --check  # exit with 1 if a file would change

An option's type, default, values and description come from its declaration in torch_dataloader_utils/options. The
parameters before MARK in a signature, and their lines in the docstring, are written by hand.
"""

from __future__ import annotations

import re
import sys
from dataclasses import Field
from pathlib import Path
from typing import Any

from torch_dataloader_utils.options import Call, options_of
from torch_dataloader_utils.values import Check, Maybe, OneOf

ROOT = Path(__file__).parent.parent
MARK = "# The options: written by scripts/write_signatures.py from their declarations."
# The file of each call, and the number of its signature there.
CALLS: dict[Call, tuple[str, int]] = {
    "stream": ("stream", 0),
    "files": ("files", 0),
    "table": ("tables", 0),
    "iceberg": ("tables", 1),
    "delta": ("tables", 2),
    "combine": ("combined", 0),
}
# Type variables, because these two options determine the type of the batches.
GENERIC = {
    "output_format": 'OutputFormat = "torch",  # type: ignore[assignment]',
    "collate_fn": "Callable[[Any], Collated] | None = None,",
}


def literal(values: tuple[object, ...]) -> str:
    """The type that has only these values: bool, strings, None."""
    words = [shown(value) for value in values if isinstance(value, str)]
    kinds = [
        *(["bool"] if True in values else []),
        *([f"Literal[{', '.join(words)}]"] if words else []),
        *(["None"] if None in values else []),
    ]
    return " | ".join(kinds)


def hint(annotation: str, check: Check | None) -> str:
    """The type of an option: from its check if that lists values, else from its declaration."""
    if isinstance(check, Maybe):
        inner = hint(annotation.removesuffix(" | None"), check.check)
        return f"{inner} | None" if annotation != "Any" else annotation
    if isinstance(check, OneOf):
        return literal(check.allowed)
    return annotation.replace("'", '"')


def shown(value: object) -> str:
    """A value as ruff formats it."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def parameter(item: Field[Any]) -> str:
    typed = (
        GENERIC.get(item.name)
        or f"{item.metadata['given'] or hint(item.type, item.metadata.get('check'))} = {shown(item.default)},"
    )
    return f"{item.name}: {typed}"


def entry(item: Field[Any]) -> str:
    """The line of an option in a docstring."""
    return f"{item.name}: {item.metadata['doc']}."


def written(text: str, options: list[Field[Any]], number: int = 0) -> str:
    """The module's text, with the options in a signature that has the mark and in the docstring after it."""
    parts = text.split(MARK)
    before, after = MARK.join(parts[: number + 1]), MARK.join(parts[number + 1 :])
    indent = re.search(r" *$", before)[0]
    by_hand = re.findall(r"^ *(\w+):", before.rpartition("def ")[2], re.MULTILINE)
    rest = after[re.search(r"^ *\) ->", after, re.MULTILINE).start() :]
    head, args, tail = re.split(r"^( *Args:\n.*?)(?=^ *Raises:)", rest, maxsplit=1, flags=re.MULTILINE | re.DOTALL)
    title, *entries = re.split(rf"^(?={indent}    \w+: )", args.rstrip(), flags=re.MULTILINE)
    kept = [item for item in entries if item.split(":")[0].strip() in by_hand]
    options = [item for item in options if item.name not in by_hand]
    signature = "".join(f"{indent}{parameter(item)}\n" for item in options)
    lines = "".join(f"{indent}    {entry(item)}\n" for item in options)
    return f"{before}{MARK}\n{signature}{head}{title}{''.join(kept).rstrip()}\n{lines}\n{tail}"


def main() -> None:
    for call, (name, number) in CALLS.items():
        path = ROOT / "torch_dataloader_utils" / "api" / f"{name}.py"
        text = path.read_text()
        new = written(text, list(options_of(call).values()), number)
        if "--check" in sys.argv and new != text:
            sys.exit(f"{path.relative_to(ROOT)} is not what is declared: run python scripts/write_signatures.py")
        if new != text:
            path.write_text(new)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
