"""Compares this working tree with an earlier revision: `python benchmarks/guard.py --against v0.3`.

Rates differ between machines, hours and processes, so two processes, one of each revision, take turns of a pass, and
what is compared is the ratio of neighbouring turns. Each pair of processes gives one figure, the median of its ratios;
the result is the mean of several pairs, with the 95 % interval of Student's t, which is the noise stated. Pairs are
added until it is small. Both revisions get compiled kernels, or the comparison is refused.

Compare with the commit at which a piece of work began, not with the one before: small losses add up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGE = "torch_dataloader_utils"
sys.path += [str(HERE), str(HERE / "peers"), str(ROOT)]

from measuring import warm  # noqa: E402
from report import title  # noqa: E402
from tables import write  # noqa: E402
from turns import KERNELS  # noqa: E402

from hatch_build import compiled  # noqa: E402

# Student's t that 2.5 % exceed, by the number of pairs (two degrees of freedom and more).
_T = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262, 12: 2.201, 16: 2.131, 24: 2.069}


@dataclass(frozen=True)
class Ratio:
    """A cost of the new revision over that of the old one.

    Attributes:
        mean: of the pairs.
        noise: half of its 95 % interval.
    """

    mean: float
    noise: float

    @classmethod
    def of(cls, pairs: list[float]) -> Ratio:
        """The ratio that pairs of processes show, each by its median."""
        if len(pairs) < 3:
            return cls(statistics.mean(pairs), math.inf)
        t = next(_T[most] for most in sorted(_T, reverse=True) if most <= len(pairs))
        return cls(statistics.mean(pairs), t * statistics.stdev(pairs) / math.sqrt(len(pairs)))

    def is_more(self, most: float) -> bool:
        """Whether it is above `most`, and above 1 beyond doubt."""
        return self.mean > most and self.mean - self.noise > 1

    def is_decided(self, most: float) -> bool:
        """Whether a ratio of 1 and one of `most` could be told apart, or it is clear anyway."""
        return self.noise <= most - 1 or self.is_more(most) or self.mean + self.noise < most

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.noise:.3f}"


def copy_of(revision: str | None, folder: Path) -> Path:
    """The package as it was at a revision, or as it is now, with kernels compiled here."""
    folder.mkdir()
    if revision is None:
        ignored = shutil.ignore_patterns("__pycache__", "*.library")
        shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=ignored)
    else:
        archive = subprocess.run(["git", "archive", revision, PACKAGE], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    kernels = folder / PACKAGE / "kernels"
    if (kernels / "library.py").exists():
        made = runpy.run_path(str(kernels / "library.py"))
        of_each = made["paths"]() if "paths" in made else {kernels / "rows.c": made["path"]()}  # older revisions
        for source, library in of_each.items():
            if problem := compiled(source, library):
                print(f"{revision or 'this tree'}: {problem}", file=sys.stderr)
    return folder


class Turns:
    """A process that takes turns of a case."""

    def __init__(self, package: Path, case: str) -> None:
        # Memory and dictionaries lie alike in all processes, as far as we can say.
        env = {**os.environ, "PYTHONPATH": str(package), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""}
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "turns.py"), case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )

    def answer(self) -> dict[str, Any]:
        """The next line that it prints.

        Raises:
            LookupError: it cannot do this; with the last line of its error.
        """
        assert self._child.stdout is not None
        if line := self._child.stdout.readline():
            found: dict[str, Any] = json.loads(line)
            return found
        assert self._child.stderr is not None
        raise LookupError((self._child.stderr.read().strip().splitlines() or ["it ended"])[-1])

    def turn(self) -> dict[str, Any]:
        """The costs of a turn."""
        assert self._child.stdin is not None
        print(file=self._child.stdin, flush=True)
        return self.answer()

    def end(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.communicate()


@contextmanager
def both(old: Path, new: Path, case: str) -> Iterator[tuple[Turns, Turns]]:
    """Processes of both revisions, one of each, that have taken their first turn.

    Raises:
        SystemExit: one runs compiled kernels and the other does not: that is what would be compared.
        LookupError: one of them cannot do this.
    """
    with ExitStack() as stack:
        found = []
        for package in (old, new):
            found.append(Turns(package, case))
            stack.callback(found[-1].end)
        runs = ["compiled" if one.answer()["compiled"] else "numpy's" for one in found]
        if runs[0] != runs[1]:
            sys.exit(f"refused: the old revision runs {runs[0]} kernels, this tree {runs[1]}. Install a C compiler.")
        yield found[0], found[1]


def pair(old: Path, new: Path, case: str, turns: int) -> dict[str, float]:
    """The medians of neighbouring turns' ratios, new over old, for time and for processor time."""
    ratios: dict[str, list[float]] = {"seconds": [], "cpu": []}
    with both(old, new, case) as (before, now):
        for number in range(turns):
            # Who is first may find another machine.
            first, second = (before, now) if number % 2 else (now, before)
            costs = {first: first.turn(), second: second.turn()}
            for kind, found in ratios.items():
                found.append(costs[now][kind] / costs[before][kind])
    return {kind: statistics.median(found) for kind, found in ratios.items()}


def compared(old: Path, new: Path, case: str, given: argparse.Namespace) -> dict[str, Ratio]:
    """The ratios of as many pairs as it takes to tell, and at most `given.pairs`."""
    pairs: list[dict[str, float]] = []
    found: dict[str, Ratio] = {}
    while len(pairs) < given.pairs:
        pairs.append(pair(old, new, case, given.turns))
        found = {kind: Ratio.of([each[kind] for each in pairs]) for kind in ("seconds", "cpu")}
        if len(pairs) >= 4 and all(ratio.is_decided(given.most) for ratio in found.values()):
            break
    return found


def cases(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The name of each case, and what it is called for `turns.py`."""
    for kernel in KERNELS if given.kernels else ():
        yield f"kernels: {kernel}", f"kernel:{kernel}"
    for table in given.tables:
        source = write(table, given.data)
        warm(source)
        for shuffle in (False, True):
            for rows in given.sizes:
                yield title(table, rows, 0, shuffle), f"{source}:{rows}:{int(shuffle)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, help="a revision of git: where the piece of work began")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tdu-benchmark")
    parser.add_argument("--tables", nargs="*", default=["wide", "narrow", "text"])
    parser.add_argument("--sizes", nargs="*", type=int, default=[1024, 16384], help="rows of a batch")
    parser.add_argument("--no-kernels", dest="kernels", action="store_false", help="leave the kernels alone out")
    parser.add_argument("--pairs", type=int, default=12, help="the most pairs of processes")
    parser.add_argument("--turns", type=int, default=9, help="of each process")
    parser.add_argument("--most", type=float, default=1.03, help="the largest cost, new / old, that is no regression")
    given = parser.parse_args()
    revision = subprocess.run(
        ["git", "rev-parse", "--short", given.against], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    slower, open_ = [], []
    with tempfile.TemporaryDirectory() as folder:
        old, new = copy_of(revision, Path(folder, "old")), copy_of(None, Path(folder, "new"))
        print(f"costs of a row, this tree / {revision}, 95 % intervals; {os.cpu_count()} cores; kernels compiled anew")
        print("| case | time | processor time |\n|---|--:|--:|", flush=True)
        for name, case in cases(given):
            try:
                found = compared(old, new, case, given)
            except LookupError as missing:
                print(f"| {name} | not compared: {missing} | |", flush=True)
                continue
            print(f"| {name} | {found['seconds']} | {found['cpu']} |", flush=True)
            if any(ratio.is_more(given.most) for ratio in found.values()):
                slower.append(name)
            elif not any(ratio.is_decided(given.most) for ratio in found.values()):
                open_.append(name)
    if slower:
        sys.exit(f"\nslower than {revision}: {'; '.join(slower)}")
    if open_:
        sys.exit(f"\ntoo noisy to see {given.most - 1:.0%}: {'; '.join(open_)}. Use a quiet machine, or more --pairs")
    print(f"\nno case costs more than {given.most} of {revision}")


if __name__ == "__main__":
    main()
