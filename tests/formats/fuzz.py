"""Reads files with a flipped bit, as a process of its own: a crash or a hang of it is seen from outside.

    python -m tests.formats.fuzz FORMAT FOLDER FLIPS SEED

Each file F.whole of the folder has its rows in F.expected (an Arrow file), and perhaps in F.range the half-open range
of bytes in which bits are flipped. A JSON object tells how often reading gave what.
"""

import json
import random
import resource
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage

MOST_MEMORY = 8 << 30  # bytes of address space


def outcome(form: Format, path: Path, expected: pa.Table) -> str:
    """What comes of reading all of a file: "right", "other" rows, or the "error" that names it."""
    try:
        found = read_all(form, path)
    except DataLoaderUtilsError as error:
        return "error" if path.name in str(error) else f"nameless: {error}"
    except MemoryError as error:
        return f"memory: {error}"
    return "right" if same(found, expected) else "other"


def read_all(form: Format, path: Path) -> pa.Table:
    """All rows, each array checked: what is handed on must not crash who looks at it."""
    info = DataFileInfo(str(path), path.stat().st_size)
    layout, schema = form.layout(info, Storage(), {})
    form.null_columns(layout)
    layout = form.pruner(pc.field(schema.names[0]).is_valid() | pc.scalar(True), schema)(layout, schema, {})
    reader = form.open(info, layout, Storage(), {}, schema)
    try:
        numbers = [segment.number for segment in layout.segments]
        alone = [[name] for name in schema.names] if form.columnar else [schema.names]
        columns = [column for names in alone for column in reader.read(numbers, names)]
    finally:
        reader.close()
    return pa.table(columns, names=schema.names)


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Whether the tables hold the same; every value is looked at.

    Text may have become no UTF-8, and decimals longer than they are said to be: whoever reads those finds out.
    """
    for column in found.columns:
        column.validate()
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if not any(word in str(error) for word in ("UTF8", "UTF-8", "does not fit in precision")):
                raise
    try:
        return bool(found.schema.equals(expected.schema)) and found.to_pylist() == expected.to_pylist()
    except (UnicodeDecodeError, OverflowError):
        return False


def place(path: Path, size: int) -> tuple[int, int]:
    """The half-open range of bytes that may be changed."""
    given = path.with_suffix(".range")
    first, stop = map(int, given.read_text().split()) if given.exists() else (0, size)
    return first, stop


def main(name: str, folder: str, flips: str, seed: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    draw, form = random.Random(int(seed)), format_named(name)
    counts: dict[str, Counter[str]] = {}
    for path in sorted(Path(folder).glob("*.whole")):
        content = path.read_bytes()
        expected = pa.ipc.open_file(path.with_suffix(".expected")).read_all()
        assert outcome(form, path, expected) == "right", path
        first, stop = place(path, len(content))
        changed, note = path.with_suffix(".changed"), path.with_suffix(".flip")
        counts[path.stem] = Counter()
        for _ in range(int(flips)):
            at, bit = draw.randrange(first, stop), draw.randrange(8)
            note.write_text(f"{at} {bit}")
            changed.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
            counts[path.stem][outcome(form, changed, expected)] += 1
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
