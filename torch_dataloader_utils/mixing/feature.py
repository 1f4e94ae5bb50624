"""Mixing as a feature: batches with rows of several datasets, as the options say, against the datasets' row counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch_dataloader_utils.errors import CheckpointMismatchError, CountsRequiredError, use
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.mixing.curriculum import Curriculum, WeightPhase, checked
from torch_dataloader_utils.mixing.epochs import Course
from torch_dataloader_utils.mixing.rows import MixRule, epoch_rows
from torch_dataloader_utils.mixing.shares import MixShares
from torch_dataloader_utils.mixing.stream_course import (
    UNIT_TOKENS,
    StreamCourse,
    check_tokens,
    streams_in_words,
    streams_of,
)
from torch_dataloader_utils.mixing.streams import MixStreams
from torch_dataloader_utils.options import MixOptions, Options
from torch_dataloader_utils.options.clash import Half
from torch_dataloader_utils.options.clashes import MIXED, RESIZES, WEIGHTED, by_splits
from torch_dataloader_utils.options.late_clashes import MIXED_COPIES
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.parts import DatasetShare, part_rows
from torch_dataloader_utils.planning.rest import RemainingRows
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.sources.group import Group, for_each, labels, repeats, weight_trees
from torch_dataloader_utils.sources.merged import names_of
from torch_dataloader_utils.sources.source import Source

_SHOWN = 4  # phases, and pairs of a curriculum
_SAVED = "mixing"  # its name in states


@dataclass(frozen=True)
class Mixing(Feature):
    """Batches with rows of several datasets, of each as many as a schedule says.

    Attributes:
        mixing: how, as plain values: {"batches": "proportional" or "single", "phases" and "rows" or "total" (see
            `Curriculum`), "unit": "step" if phases begin with steps, "run": True if epochs that have every row once
            still continue where the last one ended; for datasets without end "total" or "steps", and "unit_tokens", the
            tokens of each unit}; None: not yet known.
        names: of the datasets, for messages.
    """

    mixing: Mapping[str, Any] | None = None
    names: tuple[str, ...] = field(default=(), compare=False)

    @property
    def mixes_rows(self) -> bool:
        """Whether it is known how."""
        return self.mixing is not None

    @property
    def streams(self) -> bool:
        """Whether datasets have no end."""
        return self.mixing is not None and UNIT_TOKENS in self.mixing

    def epoch_rows(self, shape: PlanOptions, num_ranks: int) -> int | None:
        """The rows (or tokens) of every epoch."""
        if self.mixing is None or self.streams:
            return None
        return Course.of(self.mixing, shape, num_ranks).curriculum.total * shape.unit_rows

    def check_parts(self, parts: Sequence[tuple[str, bool, Half | None]], options: Options) -> None:
        """Check that the rows of each dataset are known (see `Feature`)."""
        if not options.streams:
            _check_counted(parts, options)

    def resolved(self, source: Source, options: Options) -> Mixing:
        """It, with the rows that an epoch takes of each dataset.

        Raises:
            OptionError: the options do not fit the datasets.
            EmptyDatasetError: a dataset that must be repeated has no rows.
        """
        assert source.group is not None
        of = streams_of if options.streams else _mixing_of
        return Mixing(of(source, options), tuple(labels(source.group.paths)))

    def plan(self, shape: PlanOptions) -> PlanOptions:
        """Plans whose workers share the reading of all datasets, of which each rank has equal parts."""
        if self.mixing is None:
            return shape
        return replace(shape, num_shards=1, sharding="interleave" if self.streams else "contiguous")

    def shares(
        self,
        datasets: Sequence[DatasetShare],
        shape: PlanOptions,
        num_ranks: int,
        epoch: int,
        rest: RemainingRows | None,
    ) -> MixShares | MixStreams:
        """The rows that an epoch takes of each dataset, or those that earlier phases left of it, for all ranks."""
        assert self.mixing is not None
        if self.streams:
            streams = StreamCourse.of(self.mixing, shape, num_ranks)
            return MixStreams(datasets, shape, num_ranks, epoch, streams, self.names, self.mixing[UNIT_TOKENS], rest)
        course = Course.of(self.mixing, shape, num_ranks)
        rows = course.epoch(datasets, epoch) if rest is None else course.rest(rest, epoch)
        once = rest is None and course.is_pass(datasets)
        return MixShares(rows, shape, num_ranks, epoch, single=course.single, once=once)

    def saved(self) -> Mapping[str, Any]:
        """How rows are mixed; nothing if none are, as in states from before there was any.

        These are options of a phase: other weights begin a new one.
        """
        return {} if self.mixing is None else {_SAVED: self.mixing}

    def as_saved(self, saved: Mapping[str, Any]) -> Mixing:
        """It, with what a state holds of it.

        Raises:
            CheckpointMismatchError: the state is of a release that mixed by other rules.
        """
        mixing = saved.get(_SAVED)
        if mixing is not None and "phases" not in mixing:
            raise CheckpointMismatchError(
                "the state was taken by a release that mixed datasets in another order, in which what is left of its "
                "epoch cannot be told: start the epoch again, or finish it with that release."
            )
        return replace(self, mixing=mixing)

    def check_phase(self, saved: tuple[PlanOptions, int], current: tuple[PlanOptions, int]) -> None:
        """Check that weights which change at steps change at the same rows of the run as when the state was taken.

        Raises:
            CheckpointMismatchError: a step has another number of rows now.
        """
        if self.mixing is None or self.mixing.get("unit") != "step":
            return
        of = StreamCourse.of if self.streams else Course.of
        then, now = ([phase.first for phase in of(self.mixing, *shape).phases] for shape in (saved, current))
        if then != now:
            steps = [step for step, _ in self.mixing["phases"]]
            unit = self.mixing.get(UNIT_TOKENS, current[0].unit_rows)
            at = "row" if unit == 1 else "token"
            pairs = ", ".join(f"({row * unit:_}, ...)" for row in then[:_SHOWN])
            sizes = [shape.batch_size // shape.unit_rows for shape, _ in (saved, current)]
            raise CheckpointMismatchError(
                f"weights change at the steps {steps[:_SHOWN]}, which are other rows here than in the state: it was "
                f"taken by {saved[1]} ranks with batch_size={sizes[0]} and even={saved[0].even!r}, and here "
                f"are {current[1]} with {sizes[1]} and {current[0].even!r}. Keep them at the rows that "
                f"the state means: weights=Weights([{pairs}{', ...' if len(then) > _SHOWN else ''}], at={at!r})."
            )

    def words(self, source: Source, epoch: int, shape: PlanOptions, num_ranks: int) -> str:
        """What an epoch takes of each dataset, and how batches mix them."""
        if self.mixing is None:
            return ""
        said = streams_in_words if self.streams else _in_words
        return said(self.mixing, source, epoch, shape, num_ranks)


def mixing(options: Options) -> Mixing | None:
    """The feature of a combination whose rows are mixed; None of others."""
    return Mixing() if options.mixes_rows else None


def _check_counted(labelled: Sequence[tuple[str, bool, Half | None]], options: Options) -> None:
    """Check that the rows of each dataset are known.

    Args:
        labelled: each dataset's label, whether its rows are known, and what makes it that none can count them.
        options: of the combination.

    Raises:
        CountsRequiredError: those of one are known only after reading.
    """
    for label, counted, uncountable in labelled:
        if uncountable is WEIGHTED:
            raise MIXED_COPIES.between(f"class_weights of {label}", MIXED.named(options), ways=[by_splits(options)])
        if not counted:
            keeps = "a transform that keeps them is Transform(function)"
            why = f", because its transform may change their number ({keeps})" if uncountable is RESIZES else ""
            counts = [] if uncountable is RESIZES else [use("counts once", count_rows=True)]
            raise CountsRequiredError(
                f"batches={options.mix.batches!r} needs the number of rows of each dataset, but that of {label} is "
                f"known only after reading{why}.",
                remedies=[*counts, by_splits(options)],
            )


def _mixing_of(source: Source, options: Options) -> Mapping[str, Any]:
    """How plans mix the rows of a combination."""
    mix, group = options.mix, source.group
    assert group is not None
    unit, names = options.features.unit_rows, labels(group.paths)
    sizes = part_rows(source.splits, len(source.parts))  # in tokens, if these are the rows of plans
    check_tokens(options, unit)
    per_epoch = mix.rows_per_epoch or (mix.tokens_per_epoch or 0) // unit
    length: dict[str, Any] = {"stop": mix.stop, "repeat": repeats(group, mix.repeat), "unit": unit}
    length["max_repeats"] = mix.max_repeats
    if mix.phases is None:
        rule = MixRule(**length, rows_per_epoch=per_epoch or None, **_weighting(group, sizes))
        taken = epoch_rows(sizes, names, rule)
        plain = Curriculum.constant(taken.weights, total=per_epoch, rows=taken.rows).plain
        return {"batches": mix.batches, **plain, **_of_run(mix, taken.rows, sizes, unit)}
    pairs = zip(mix.phases, weight_trees(group), strict=True)
    starts = unit if mix.weights_unit == "token" else 1
    phases = tuple(WeightPhase(-(-first // starts), tree.of_datasets(sizes)) for (first, _), tree in pairs)
    fixed = None if per_epoch else epoch_rows(sizes, names, MixRule(**length)).rows
    total = per_epoch or sum(fixed or ())
    steps = {"unit": "step"} if mix.weights_unit == "step" else {}
    plain = checked(Curriculum(phases, total, fixed), sizes, names, unit).plain
    return {"batches": mix.batches, **steps, **plain, **_of_run(mix, fixed, sizes, unit)}


def _in_words(mixing: Mapping[str, Any], source: Source, epoch: int, shape: PlanOptions, num_ranks: int) -> str:
    """What an epoch takes of each dataset, and how batches mix them."""
    names, course = names_of(source), Course.of(mixing, shape, num_ranks)
    sizes, found = part_rows(source.splits, len(source.parts)), course.delivered(epoch)
    total, unit = max(sum(found.taken), 1), course.unit_rows
    of_each = []
    for name, rows, size in zip(names, found.taken, sizes, strict=True):
        laps = "" if rows == size // unit else f", {rows * unit / max(size, 1):.3g} laps"
        count = plural(rows, "row") if unit == 1 else plural(rows * unit, "token")
        of_each.append(f"{rows / total:.1%} {name} ({count}{laps})")
    batches = "each batch is of one" if course.single else "each batch has rows of each"
    if unit > 1:
        batches = f"each sequence of {unit:,} tokens is of one, {batches.replace('rows', 'sequences')}"
    curriculum = course.curriculum
    if len(curriculum.phases) == 1:
        return f"{batches}: {', '.join(of_each)}{_end_in_words(names, course, epoch)}"
    steps = [curriculum.step(phase.first, course.step_rows, full=course.full) for phase in curriculum.phases]
    phases = _phases_in_words(curriculum, names, steps, "row" if unit == 1 else "sequence")
    return f"{batches}, in epoch {epoch}: {', '.join(of_each)}; {phases}"


def _of_run(mix: MixOptions, rows: Sequence[int] | None, sizes: Sequence[int], unit: int) -> dict[str, Any]:
    """The mark of a mix whose epochs happen to have every row once, but continue where the last one ended."""
    once = mix.stop == "once" and mix.repeat is None
    return {} if once or rows is None or list(rows) != [size // unit for size in sizes] else {"run": True}


def _weighting(group: Group, sizes: Sequence[int]) -> dict[str, Any]:
    """The fields of a rule that say what the datasets weigh."""
    if group.is_flat:
        return {"weights": for_each("weights", group.mix.weights, group.names), "temperature": group.mix.temperature}
    (tree,) = weight_trees(group)
    return {"weights": tree.of_datasets(sizes) if tree.chosen else None}


def _end_in_words(names: Sequence[str], course: Course, epoch: int) -> str:
    """From which step on weights no longer show, because a dataset has ended; "" if all end together."""
    turns, rows = course.delivered(epoch).turns, 1 if course.single else course.step_rows
    if len(turns.stretches) < 2 or turns.stretches[0].units // rows == turns.total // rows:
        return ""
    first, then = (stretch.weights for stretch in turns.stretches[:2])
    ended = next(name for name, before, after in zip(names, first, then, strict=True) if before and not after)
    step = turns.stretches[0].units // rows
    return f"; by weight until {ended} ends: from step {step:,} on, batches have more of the others"


def _phases_in_words(curriculum: Curriculum, names: Sequence[str], steps: Sequence[int], unit: str) -> str:
    """The weights from each row, or sequence, of the run on, with the step that has it."""
    texts = []
    for phase, step in zip(curriculum.phases[:_SHOWN], steps, strict=False):
        pairs = zip(phase.weights, names, strict=True)
        shares = ", ".join(f"{float(weight / sum(phase.weights)):.1%} {name}" for weight, name in pairs)
        texts.append(f"from step {step:,} ({unit} {phase.first:,}) on {shares}")
    more = len(curriculum.phases) - len(texts)
    return "; ".join([*texts, *([f"and {plural(more, 'more change')}"] if more else [])])
