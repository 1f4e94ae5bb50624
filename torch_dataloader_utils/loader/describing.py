"""Gathers for `describe()` what is known about a dataset without reading it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.convert.stacks import stacked_keys
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.kernels import compiled
from torch_dataloader_utils.loader.cached_share import cached_share
from torch_dataloader_utils.loader.description import BatchKey, Description, RankShare
from torch_dataloader_utils.model import DataFile, Unit
from torch_dataloader_utils.options import Options, repeats_rows
from torch_dataloader_utils.planner import Planner, plan_options
from torch_dataloader_utils.planning.advice import (
    Advice,
    idle_ranks_advice,
    idle_workers_advice,
    small_windows_advice,
    uneven_steps_advice,
)
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.planning.plan_table import window_in_words
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.reading.combined import scans_of
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.merged import splits_in_words, subset_in_words
from torch_dataloader_utils.sources.sorted_columns import sorted_columns
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.sources.tables import snapshot_in_words

_BATCH_TYPES = {
    "torch": "a dict of torch tensors",
    "numpy": "a dict of numpy arrays",
    "arrow": "a pyarrow.RecordBatch",
    "dict": "a dict of Python lists",
}
_COLUMNS_NAMED = 5


def described(dataset: str, here: Passes, options: Options, epoch: int, *, waits: bool = False) -> Description:
    """The description of a dataset for an epoch. The number of ranks is not fixed by this call.

    Args:
        dataset: the name of the kind of dataset.
        here: its passes.
        options: of its loader.
        epoch: the epoch.
        waits: whether the next pass waits for rows that are appended to a table.
    """
    return _Facts(here.planner.source(epoch), options, here.planner, epoch, waits).description(dataset)


@dataclass(frozen=True)
class _Facts:
    """The values that a description is made from."""

    source: Source
    options: Options
    planner: Planner
    epoch: int
    waits: bool

    def description(self, dataset: str) -> Description:
        """The description; `dataset` is the name of the kind of dataset."""
        source, world, plan = self.source, self.planner.known_world, self.planner.plan_of_all_ranks(self.epoch)
        own = self._rank_plan(plan, world.rank)
        cached = cached_share(source, plan, self.epoch, world)
        segments = [segment for file in source.files for segment in file.layout.segments]
        ranks = self._ranks(plan, own)
        worker_splits = tuple(len(own.shard(worker).splits) for worker in range(len(own.shards)))
        snapshot, replay = snapshot_in_words(source.snapshot)
        return Description(
            dataset=dataset, epoch=self.epoch, snapshot=snapshot, replay=replay, follow=self._follow,
            files=len(source.files), skipped=source.skipped, subset=subset_in_words(source),
            weights="" if source.weights is None else source.weights.in_words,
            transform="; ".join(dict.fromkeys(_transforms(source))),
            mix=self._mix(own, world.num_ranks), cache=cached.text,
            packing=self.options.pack.text, sequences=source.sequences, buckets=source.buckets,
            uncounted=self.options.uncounted,
            stored_bytes=sum(file.info.file_size for file in source.files),
            decoded_bytes=sum(segment.size_bytes for segment in segments),
            decoder="; ".join(dict.fromkeys(_decoders(source))),
            segments=len(segments), segment_name=_segment_name(source), splits=len(source.splits),
            rows=self._rows if source.rows_are_final else None, rows_unfiltered=self._rows,
            batch_rows=own.batch_rows // own.unit_rows, sequence_length=own.unit_rows,
            batch_type=self._batch_type, keys=tuple(batch_keys(source, self.options.batch.output_format)),
            object_columns=_object_columns(source, self.options.batch.output_format),
            rank=world.rank, num_ranks=world.num_ranks, ranks_from=world.source,
            sharding=type(self.options.split.split_strategy).__name__ if plan is None else plan.sharding,
            even=self.options.shard.even or "none", ranks=ranks,
            not_delivered=None if plan is None else self._not_delivered(ranks, own.batch_rows),
            worker_splits=worker_splits, shuffle_window=own.window,
            shuffle=shuffle_sentence(self.options.shuffle.permutes, own, packs=source.unit is Unit.SEQUENCE),
            batch_variance=_variance(own),
            warnings=(*self._warnings(plan, own, worker_splits), *([cached.advice] if cached.advice else [])),
        )  # fmt: skip

    @property
    def _rows(self) -> int | None:
        """The number of rows that splits know of, before uncounted filters; None if one does not know."""
        return self.source.splits.rows

    def _mix(self, own: RankPlan, num_ranks: int) -> str:
        """What an epoch takes of each dataset of a combination."""
        if self.options.features.mixes_rows:
            return self.options.features.words(self.source, self.epoch, plan_options(self.options), num_ranks)
        return splits_in_words(self.source, None if own.window is None else own.window.windows)

    @property
    def _follow(self) -> str:
        """What the passes read of a table that they follow."""
        if not self.options.follow.follows:
            return ""
        if not self.waits:
            return "each pass is what was appended since the one before it"
        below = "; below is the last one" if self.source.files else ""
        here = "snapshot" if self.source.snapshot is None else self.source.snapshot.cursor.place.split()[0]
        return f"the next pass is what is appended after this {here}, known once it has begun{below}"

    @property
    def _batch_type(self) -> str:
        batch = self.options.batch
        device = "" if self.options.worker.device is None else f" on {self.options.worker.device}"
        collated = "" if batch.collate_fn is None else ", given to collate_fn"
        return f"{_BATCH_TYPES[batch.output_format]}{device}{collated}"

    def _ranks(self, plan: Plan | None, own: RankPlan) -> tuple[RankShare, ...]:
        """What each rank gets; only this rank's share if a strategy generates the shards."""
        if plan is None:
            return (self._share(own.rank, own.rows, own.steps, own.batch_rows),)
        unknown = [None] * plan.num_ranks
        rows, steps = plan.rows(self.epoch) or unknown, plan.steps(self.epoch) or unknown
        if self.options.shard.steps_per_epoch is not None and rows is not unknown:
            rows = [self._rank_plan(plan, rank).rows or 0 for rank in range(plan.num_ranks)]
        return tuple(
            self._share(rank, *share, own.batch_rows)
            for rank, share in enumerate(zip(rows, self._even(steps), strict=True))
        )

    def _rank_plan(self, plan: Plan | None, rank: int) -> RankPlan:
        """The plan of a rank, by the ranks that show by now."""
        if plan is None:
            return self.planner.rank_plan(self.epoch, rank)
        own, steps = plan.rank(self.epoch, rank), self.options.shard.steps_per_epoch
        return own if steps is None else own.ending_after(steps)

    def _even(self, steps: list[int] | list[None]) -> list[Any]:
        """The steps of all ranks, after options that end all of them at the same step."""
        shard = self.options.shard
        if shard.steps_per_epoch is not None:
            return [shard.steps_per_epoch] * len(steps)
        known = [count for count in steps if count is not None]
        return [min(known)] * len(steps) if shard.even == "sync" and known else steps

    def _share(self, rank: int, rows: int | None, steps: int | None, batch_rows: int) -> RankShare:
        padding: int | None = 0
        if repeats_rows(self.options):
            padding = None if rows is None or steps is None else max(0, steps * batch_rows - rows)
        return RankShare(rank, rows, steps, padding)

    def _not_delivered(self, ranks: tuple[RankShare, ...], batch_rows: int) -> int | None:
        """The rows that no rank delivers: left out for `even`, after the last step, or left to other epochs."""
        delivered = [
            min(share.rows, share.steps * batch_rows)
            for share in ranks
            if share.rows is not None and share.steps is not None
        ]
        features = self.options.features
        rows = features.epoch_rows(plan_options(self.options), len(ranks)) if features.mixes_rows else self._rows
        return None if rows is None or len(delivered) < len(ranks) else rows - sum(delivered)

    def _warnings(self, plan: Plan | None, own: RankPlan, worker_splits: Sequence[int]) -> Iterator[Advice]:
        if not self.source.splits and self.waits:
            return
        if not self.source.splits:
            yield Advice("There is nothing to read.", "Check the filter, or the table.")
            return
        countable, wanted = not self.options.uncounted, self.options.shard.even == "none"
        of_ranks = plan and (
            idle_ranks_advice(plan, self.epoch) or uneven_steps_advice(plan, self.epoch, countable, wanted=wanted)
        )
        of_order = small_windows_advice(own, self.options.shuffle) if own.window else sorted_advice(self.source)
        of_workers = None if own.joint else idle_workers_advice(worker_splits)
        yield from filter(None, [of_ranks, of_workers, of_order])


def _variance(plan: RankPlan) -> float | None:
    """Of a batch's mean, relative to that of a random sample; None without windows of rows."""
    window = plan.window
    return None if window is None or plan.unit is Unit.BATCH else window.variance_ratio(plan.batch_rows)


def _object_columns(source: Source, output_format: str) -> tuple[str, ...]:
    report = {} if output_format in ("arrow", "dict") else source.scan.report()
    return tuple(key for key, each in report.items() if each["dtype"] == "object")


def batch_keys(source: Source, output_format: str) -> Iterator[BatchKey]:
    """The dtype and shape of each key of a batch, in order."""
    report = source.scan.report()
    for key in stacked_keys(source.keys, source.scan.jagged):
        if key not in report:
            yield BatchKey(key, "bool", "[B]")  # the mask of real rows
        elif output_format in ("arrow", "dict"):
            yield BatchKey(key, report[key]["arrow"], "[B]")
        else:
            yield BatchKey(key, *_dtype_and_shape(report[key], output_format))


def shuffle_sentence(permutes: str, plan: RankPlan, *, packs: bool = False) -> str:
    """What shuffling does to a rank's rows, in a sentence.

    Args:
        permutes: what has another order in each epoch; "" for nothing.
        plan: the plan of the rank.
        packs: whether documents are packed, by length.
    """
    if plan.window is not None:
        order = "splits stay in file order" if not permutes else "each epoch has another order"
        order = f"partitions stay in order, and in each of them {order}" if permutes == "partition" else order
        what = "documents" if plan.unit is Unit.TOKEN else "batches" if plan.unit is Unit.BATCH else plan.unit.plural
        words = window_in_words(plan.window, plan.batch_rows, plan.unit)
        slower = "" if compiled() else "; more slowly, because there was no C compiler when the package was installed"
        return f"{what} are permuted in {words}; {order}{slower}"
    if not permutes and packs:
        return "off: each window of documents is in file order, and packed by length"
    if not permutes:
        return "off: each epoch delivers the rows in file order"
    return (
        f"each epoch has the splits in another order ({plural(plan.num_splits, 'split')} on this rank); the rows of a "
        "split stay in file order"
    )


def sorted_advice(source: Source) -> Advice | None:
    """Advice about unshuffled rows that are sorted by a column; None if they are not known to be sorted."""
    names = list(dict.fromkeys(name for found in _sorted_by(source) for name in found))
    if not names:
        return None
    listed = " and by ".join(map(repr, names[:_COLUMNS_NAMED])) + (", ..." if len(names) > _COLUMNS_NAMED else "")
    return Advice(
        f"the rows are sorted by {listed}, and not shuffled: each batch holds neighbouring values.",
        "For training, use shuffle=True.",
    )


def _sorted_by(source: Source) -> Iterator[tuple[str, ...]]:
    """The columns that each part is sorted by."""
    for scan, files in _scans(source):
        yield sorted_columns(files, scan.opener, [name for name in scan.schema.names if name not in scan.names])


def _decoders(source: Source) -> Iterator[str]:
    """What decodes the first file of each part, in words."""
    for scan, files in _scans(source):
        if files and files[0].layout.segments:
            yield from filter(None, [scan.opener.decoder(files[0].layout, scan.schema.names, scan.format_options)])


def _transforms(source: Source) -> Iterator[str]:
    """What becomes of rows for which the transform of each part fails, and whether it draws, in words."""
    for scan, _ in _scans(source):
        said = ["random: it draws for each row and epoch"] if scan.draws is not None else []
        if (rule := scan.skipping) is not None:
            most = f"{rule.most:.3g} of them" if isinstance(rule.most, float) else plural(rule.most, "row")
            place = "are filled, and masked" if rule.keeps else "are left out"
            said.append(f"rows for which it fails {place}, up to {most}")
        if said:
            yield f"{'' if scan.source is None else f'of {scan.source!r} '}{'; '.join(said)}"


def _scans(source: Source) -> Iterator[tuple[ScanSpec, list[DataFile]]]:
    """The scan and the files of each part."""
    for part, scan in enumerate(scans_of(source.scan)):
        if isinstance(scan, ScanSpec):
            yield scan, [file for file in source.files if file.info.part == part]


def _segment_name(source: Source) -> str:
    scan = source.scan
    return scan.opener.segment_name if isinstance(scan, ScanSpec) else "segment"


def _dtype_and_shape(leaf: Mapping[str, Any], output_format: str) -> tuple[str, str]:
    """The dtype and shape of a column in a converter's report, in words."""
    kind, dtype, shape = leaf["kind"], leaf["dtype"], leaf["shape"]
    if kind == "list":
        return (f"object ({leaf['arrow']})" if dtype == "object" else dtype), "list of B"
    if kind == "dense" or (kind == "nested" and output_format == "torch"):
        return dtype, shape if kind == "dense" else f"{shape} (nested)"
    inner = shape.removeprefix("[B, *").removesuffix("]")
    if kind == "padded":
        return dtype, f"values [B, longest{inner}], lengths [B]"
    if kind == "jagged":
        return dtype, f"values [*], lengths [{len(leaf['jagged'])} * B]: lists of {', '.join(leaf['jagged'])}"
    return dtype, f"values [*{inner}], offsets [B + 1]"
