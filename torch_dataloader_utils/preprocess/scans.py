"""How many scans a fit takes at most: known before any row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_dataloader_utils.preprocess.refinement import Accuracy
from torch_dataloader_utils.preprocess.scan import most_scans
from torch_dataloader_utils.preprocess.spec import OutputSpec


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
