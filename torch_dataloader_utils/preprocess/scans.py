"""What scans count for a chain of transforms, and how many a fit takes at most: known before any row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_dataloader_utils.preprocess.refinement import Accuracy
from torch_dataloader_utils.preprocess.spec import OutputSpec
from torch_dataloader_utils.preprocess.transforms import ColumnTransform, Impute, NumberTransform


@dataclass(frozen=True)
class Scans:
    """How often a fit reads the rows, at most.

    Attributes:
        columns: for each scan, the columns that it reads.
        reasons: why an output needs more than one scan, by output.
    """

    columns: tuple[tuple[str, ...], ...]
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """The number of scans; fewer may do, as where a column of numbers has at most 65,536 different values."""
        return len(self.columns)

    def __repr__(self) -> str:
        lines = [f"<at most {self.most} scan{'' if self.most == 1 else 's'}"]
        lines += [f"  {number}: {', '.join(names)}" for number, names in enumerate(self.columns, 1)]
        lines += [f"  {name}: {why}" for name, reasons in self.reasons.items() for why in reasons]
        if self.most > 1:
            lines.append("  (one does for a column of numbers with at most 65,536 different values)")
        return "\n".join(lines) + ">"


def scans_of(outputs: Sequence[OutputSpec], accuracy: Accuracy) -> Scans:
    """The scans that these outputs need."""
    needed = {output: most_scans(output.chain, accuracy) for output in outputs}
    most = max((scans for scans, _ in needed.values()), default=0)
    columns = tuple(
        tuple(dict.fromkeys(name for output in outputs if needed[output][0] > scan for name in output.read_columns))
        for scan in range(most)
    )
    return Scans(columns, {output.name: tuple(why) for output, (_, why) in needed.items() if why})


def wanted(chain: Sequence[ColumnTransform], first: int) -> frozenset[str]:
    """What a scan counts before link `first`, so that it and those behind it learn as much as they can."""
    found: set[str] = set()
    moved = False
    for link in chain[first:]:
        needs = link.needs
        if needs & {"targets", "own"} and link is not chain[first]:
            break  # it counts what the links before it make, which is not known yet
        # Behind another transform, sums follow only of a grid of known values.
        found |= {"grid"} if moved and needs & {"moments", "grid"} else set() if moved else needs
        moved = moved or isinstance(link, NumberTransform)
    return frozenset(found)


def most_scans(chain: Sequence[ColumnTransform], accuracy: Accuracy) -> tuple[int, list[str]]:
    """The most scans that a chain may need, and why more than one."""
    scans, why = 0, []
    place = next((i for i, link in enumerate(chain) if link.needs), len(chain))
    while place < len(chain):
        scans += 1
        if scans > 1:
            why.append(f"{chain[place]!r} is fitted on what {chain[place - 1]!r} makes")
        first, known, moved = place, set(wanted(chain, place)), False
        while place < len(chain) and chain[place].needs <= known:
            link = chain[place]
            if isinstance(link, NumberTransform):
                known &= {"grid"} if link.monotone else set()
                moved = True
            elif isinstance(link, Impute) and moved:
                known = set()  # where the fill lies among the values counted before is not known
            elif isinstance(link, Impute) and any(each.numeric for each in chain):
                known -= link.needs & {"counts"}  # of numbers that need not be whole: no categories
            place += 1
        if again := accuracy.most_scans(chain[first:place]):
            scans += again
            why.append(accuracy.why(chain[first:place], again))
    return scans, why
