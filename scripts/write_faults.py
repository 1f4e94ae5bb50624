"""Writes the table in docs/faults.md by injecting every fault for real and timing its error.

python scripts/write_faults.py             # inject all faults; exits with 1 if one does not give what it should
python scripts/write_faults.py gzip FIFO   # only those whose names contain a word; the other rows stay as they are
python scripts/write_faults.py --check     # inject none: exit with 1 if the page and the list of faults disagree

A fault that does not give what it should is left out of the page, and its row is removed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.faults.table import Fault, Result, faults, injected  # noqa: E402

PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- faults: written by scripts/write_faults.py -->", "<!-- end of faults -->"
HEAD = "| fault | what you get | what you lose | time to it | test |\n|---|---|---|---|---|"
REPOSITORY = "https://github.com/srpraneeth/torch-dataloader-utils/blob/main"


def cells(given: Fault, error: str) -> str:
    """The row without its time, which differs between runs."""
    path, _, name = given.test.partition("::")
    gives = given.gives if isinstance(given.gives, str) else f"`{error}`"
    return f"| {given.name} | {gives} | {given.loses} | {{time}} | [{words(name)}]({REPOSITORY}/{path}) |"


def words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def shown(seconds: float) -> str:
    """A duration for a reader, with as many digits as it is worth."""
    if seconds < 0.1:
        return "under 0.1 s"
    return f"{seconds:.1f} s"


def rows_of(page: str) -> dict[str, str]:
    """The rows of the page by the fault's name."""
    lines = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    return {name: row for name, row in rows.items() if name != "fault"}


def written(page: str, rows: dict[str, str]) -> str:
    """The page with these rows, in the order of the list of faults."""
    parts = []
    for section, members in groupby((given for given in faults() if given.name in rows), lambda given: given.section):
        parts.append(f"\n### {section}\n\n{HEAD}\n" + "".join(f"{rows[given.name]}\n" for given in members))
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{''.join(parts)}\n{END}{rest.partition(END)[2]}"


def measured(chosen: Iterable[Fault]) -> dict[Fault, Result]:
    """What each fault led to."""
    results = {}
    for given in chosen:
        with tempfile.TemporaryDirectory() as folder:
            result = injected(given, Path(folder))
        results[given] = result
        good = "ok  " if result.good else "FAIL"
        untested = "" if given.tested else f"; NO TEST {given.test}"
        print(
            f"{good} {result.seconds:6.2f} s  {given.name}: {result.error} {result.message[:300]}{untested}", flush=True
        )
    return results


def differences(page: str) -> list[str]:
    """Why the page and the list of faults disagree."""
    known, rows, found = {given.name: given for given in faults()}, rows_of(page), []
    for name, row in rows.items():
        error = re.search(r"`(\w+)`", row.split(" | ")[1])
        if name not in known:
            found.append(f"{name}: no such fault")
        elif not known[name].tested:
            found.append(f"{name}: there is no test {known[name].test}")
        elif split(cells(known[name], error[1] if error else "")) != split(row):
            found.append(f"{name}: the row says something else")
    if written(page, rows) != page:
        found.append("the rows are in another order")
    return found


def split(row: str) -> list[str]:
    """The cells without the time."""
    parts = row.split(" | ")
    return parts[:3] + parts[4:]


def main(words: list[str]) -> int:
    page = PAGE.read_text()
    if words == ["--check"]:
        if found := differences(page):
            print("\n".join(["docs/faults.md is out of date: run python scripts/write_faults.py", *found]))
        return int(bool(found))
    rows, results = rows_of(page), measured(faults(words))
    for given, result in results.items():
        rows.pop(given.name, None)
        if result.good and given.tested:
            rows[given.name] = cells(given, result.error).format(time=shown(result.seconds))
    PAGE.write_text(written(page, {given.name: rows[given.name] for given in faults() if given.name in rows}))
    left = [given.name for given, result in results.items() if not (result.good and given.tested)]
    print(f"{PAGE.relative_to(ROOT)}: {len(results) - len(left)} of {len(results)} faults; left out: {left}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
