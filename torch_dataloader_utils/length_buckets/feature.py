"""Length buckets as a feature: checked against the columns that are read, and what they change of a loader."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_dataloader_utils.batching.batches import BatchMaker
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError, leave_out, use
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.length_buckets.batches import BucketMaker
from torch_dataloader_utils.length_buckets.blocks import Bucketing
from torch_dataloader_utils.length_buckets.groups import Budget
from torch_dataloader_utils.model import Unit
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.options.buckets import Buckets
from torch_dataloader_utils.planning.options import PlanOptions, ReadTogether
from torch_dataloader_utils.reading.combined import CombinedScan, datasets_of_units, scans_of
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.source import Source

_LISTS = ("ragged", "padded", "nested")


@dataclass(frozen=True)
class LengthBuckets(Feature):
    """Batches with a budget of tokens, of rows of similar length.

    How many batches there are is known only after reading: it follows from the lengths of the rows of each window.

    Attributes:
        buckets: the budget.
        windows: which rows are read together.
    """

    buckets: Buckets
    windows: ReadTogether

    @property
    def unit(self) -> Unit:
        """A batch."""
        return Unit.BATCH

    @property
    def unit_tokens(self) -> int:
        """The tokens of a batch."""
        return self.buckets.tokens

    def source(self, source: Source, keys: Sequence[str], options: Options) -> Source:
        """The batches of these rows.

        Raises:
            ColumnNotFoundError: the column of lengths does not exist.
            UnsupportedTypeError: it has no length.
            OptionError: it was not given, and there is not exactly one column of lists.
        """
        scan = source.scan
        assert isinstance(scan, (ScanSpec, CombinedScan))
        column = _length_column(self.buckets, scan.report())
        long = "drop" if self.buckets.long == "drop" else "single"
        size, multiple = options.batch.batch_size, _multiple(scan)
        budget, strict = Budget(self.buckets.tokens, size, multiple, long), self.buckets.long == "error"
        stage = Bucketing(
            column, budget, strict, options.mix.source_key, datasets_of_units(scan, mixed=options.mixes_rows)
        )
        text = options.bucket.text(size, multiple)
        return replace(source, scan=replace(scan, stage=stage), unit=self.unit, buckets=text)

    def plan(self, shape: PlanOptions) -> PlanOptions:
        """The same plans, in which a row is a batch."""
        return replace(shape, batch_size=1, read_together=self.windows)

    def batches(self, maker: BatchMaker) -> BatchMaker:
        """Batches of different numbers of rows."""
        return BucketMaker(maker)


def length_buckets(options: Options) -> LengthBuckets | None:
    """The feature of `batch_tokens`; None without it."""
    group = options.bucket
    if group.batch_tokens is None:
        return None
    return LengthBuckets(group.batch_tokens, ReadTogether(group.rows, group.window_bytes, keyed=True))


def _multiple(scan: ScanSpec | CombinedScan) -> int:
    """Of which the length of each padded list of a batch is one."""
    return math.lcm(*(part.converter.multiple for part in scans_of(scan) if isinstance(part, ScanSpec)))


def _length_column(buckets: Buckets, report: Mapping[str, Mapping[str, Any]]) -> str:
    given = buckets.by
    own = [key for key, each in report.items() if _has_length(each)]
    joined = [column for each in report.values() for column in each.get("jagged", ())]
    found = [*own, *joined]
    if given is None:
        lists = [key for key in own if report[key]["kind"] in _LISTS and not _holds_text(report[key])] or joined
        if len(lists) != 1:
            if not found:
                raise OptionError(
                    f"batch_tokens needs a column that says how long rows are, but of {list(report)} none holds lists, "
                    "strings or whole numbers: read one, too (columns=).",
                    remedies=[leave_out("batch_tokens")],
                )
            columns = f"are several columns of lists, {lists}" if lists else "is no column of lists"
            raise OptionError(
                f"batch_tokens needs Buckets(by=): there {columns}. One of {found} says how long rows are.",
                remedies=[use(batch_tokens=buckets.replace(by=key)) for key in found[:3]],
            )
        return lists[0]
    if given not in report and given not in found:
        raise ColumnNotFoundError(f"Buckets(by={given!r}): {_expected(found)}.")
    if given not in found:
        raise UnsupportedTypeError(
            f"Buckets(by={given!r}) is a column of {report[given].get('arrow', report[given]['kind'])}: "
            f"{_expected(found)}."
        )
    return given


def _expected(found: list[str]) -> str:
    """What a column of lengths is, with those that there are."""
    kinds = "lists, strings or whole numbers"
    return f"expected one of {kinds}: {found}" if found else f"expected {kinds}, but no column that is read holds them"


def _holds_text(each: Mapping[str, Any]) -> bool:
    return str(each.get("arrow")) in ("string", "large_string", "binary", "large_binary")


def _has_length(each: Mapping[str, Any]) -> bool:
    if each["kind"] in _LISTS:
        return True
    if each["kind"] == "list":
        return each["dtype"] in ("str", "bytes")
    whole = str(each.get("dtype", "")).startswith(("int", "uint"))
    return each["kind"] == "dense" and whole and each["shape"] == "[B]" and "codes" not in each and "unit" not in each
