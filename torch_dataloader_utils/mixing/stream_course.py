"""What epochs of a mix without end take of each dataset: whole steps of units, by the weights of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch_dataloader_utils.errors import Example, OptionError, use
from torch_dataloader_utils.mixing.curriculum import Curriculum, WeightPhase
from torch_dataloader_utils.mixing.turns import Turns
from torch_dataloader_utils.model import Unit
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.sources.group import weight_trees
from torch_dataloader_utils.sources.merged import names_of
from torch_dataloader_utils.sources.source import Source

UNIT_TOKENS = "unit_tokens"  # in a plan's option `mixing`, if datasets have no end


@dataclass(frozen=True)
class StreamCourse:
    """What epochs take, under the options and ranks of a plan.

    Attributes:
        phases: the weights of the run, from its units (`single`: its steps) on.
        steps: of an epoch.
        step_units: the units of a step of all ranks (R*B).
        given: the units of an epoch before they are rounded down to whole steps; None: so many steps are given.
        single: whether each step is of one dataset.
    """

    phases: tuple[WeightPhase, ...]
    steps: int
    step_units: int
    given: int | None
    single: bool

    @classmethod
    def of(cls, mixing: Mapping[str, Any], options: PlanOptions, num_ranks: int) -> StreamCourse:
        """That of a plan's option `mixing`."""
        step_units = num_ranks * options.batch_rows(num_ranks) // options.unit_rows
        given = mixing.get("total")
        steps = mixing["steps"] if given is None else given // step_units
        phases = Curriculum.of({**mixing, "total": 0}).phases
        if mixing.get("unit") == "step":
            phases = tuple(replace(phase, first=phase.first * step_units) for phase in phases)
        return cls(phases, steps, step_units, given, mixing["batches"] == "single")

    @property
    def step(self) -> int:
        """What a step takes of what phases count."""
        return 1 if self.single else self.step_units

    def first(self, epoch: int) -> int:
        """The first of the run that an epoch takes of what phases count."""
        return epoch * self.steps * self.step

    def turns(self, first: int, steps: int) -> Turns:
        """The turns of so many steps of the run, from there on."""
        return Curriculum(self.phases, 0).of_run(first, first + steps * self.step)

    @property
    def left(self) -> int:
        """The units of an epoch that all its phases take, or its steps."""
        return self.steps if self.given is None else self.given

    def steps_of(self, left: int) -> int:
        """The steps of so much that is left."""
        return left if self.given is None else left // self.step_units

    def after(self, left: int, steps: int) -> int:
        """What is left after these steps."""
        return max(0, left - (steps if self.given is None else steps * self.step_units))


def streams_of(source: Source, options: Options) -> Mapping[str, Any]:
    """How plans mix datasets without end.

    Raises:
        OptionError: no weights are given, or an epoch has too few tokens.
    """
    mix, unit, group = options.mix, options.features.unit_tokens or 1, source.group
    assert group is not None
    trees = weight_trees(group)
    if any(tree.needs_rows for tree in trees):
        raise OptionError(
            "how many tokens datasets have is known only after reading, so no weights follow from them.",
            remedies=[use(weights=Example("weights", [1] * len(group.names)))],
        )
    check_tokens(options, unit)
    starts = unit if mix.weights_unit == "token" else 1
    firsts = [0] if mix.phases is None else [-(-first // starts) for first, _ in mix.phases]
    nothing = [1] * len(group.paths)  # weights are given
    weights = [[str(weight) for weight in tree.of_datasets(nothing)] for tree in trees]
    steps = options.shard.steps_per_epoch
    length = {"total": (mix.tokens_per_epoch or 0) // unit} if steps is None else {"steps": steps}
    changes = {"unit": "step"} if mix.phases is not None and mix.weights_unit == "step" else {}
    phases = [list(phase) for phase in zip(firsts, weights, strict=True)]
    return {"batches": mix.batches, "phases": phases, **length, **changes, UNIT_TOKENS: unit}


def check_tokens(options: Options, unit: int) -> None:
    """Check that an epoch of so many tokens has something of as many as `unit`.

    Raises:
        OptionError: it has not.
    """
    tokens = options.mix.tokens_per_epoch
    if tokens is not None and tokens < unit:
        what = "batch" if options.pack.pack is None else "sequence"
        raise OptionError(
            f"tokens_per_epoch={tokens}: expected at least the {unit} tokens of a {what}, for each of batch_size on "
            "each rank.",
            remedies=[use(tokens_per_epoch=options.batch.batch_size * unit)],
        )


def streams_in_words(mixing: Mapping[str, Any], source: Source, epoch: int, shape: PlanOptions, num_ranks: int) -> str:
    """What an epoch takes of each dataset, in tokens with padding, and how batches mix them."""
    course, names, unit = StreamCourse.of(mixing, shape, num_ranks), names_of(source), mixing[UNIT_TOKENS]
    taken = course.turns(course.first(epoch), course.steps).of_each
    size, total = course.step_units if course.single else 1, max(sum(taken), 1)
    pairs = zip(names, taken, strict=True)
    of_each = ", ".join(
        f"{count / total:.1%} {name} ({plural(count * size * unit, 'token')} with padding)" for name, count in pairs
    )
    what = "batch" if source.unit is Unit.BATCH else "sequence"
    of_step = ", each step too" if course.single else ""
    words = f"each {what} of {unit:,} tokens is of one dataset{of_step}: {of_each}"
    return words if len(course.phases) == 1 else f"{words}; in epoch {epoch}, of weights that change"
