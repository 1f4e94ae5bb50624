"""Packing as a feature: checked against the columns that are read, and what it changes of a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.batching.batches import BatchMaker
from torch_dataloader_utils.convert.plan import pad_value
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError, use
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.model import DataFile, Unit
from torch_dataloader_utils.options import Options, PackOptions, repeats_rows
from torch_dataloader_utils.options.clashes import PACKED_CLASSES
from torch_dataloader_utils.options.packing import IGNORED, KEYS, LABELS, OF_DOCUMENTS, Pack
from torch_dataloader_utils.packing.documents import DocumentPacking
from torch_dataloader_utils.packing.masked_labels import LabelsForMask
from torch_dataloader_utils.packing.sequence_batches import SequenceMaker
from torch_dataloader_utils.packing.sides import PackedSide, keys_of, sides_of
from torch_dataloader_utils.packing.stream import Wrapping
from torch_dataloader_utils.packing.tokens import in_tokens, tokens_in_footers, tokens_unknown
from torch_dataloader_utils.packing.uncounted import UncountedWrapping
from torch_dataloader_utils.planning.options import PlanOptions, ReadTogether
from torch_dataloader_utils.reading.blocks import Scan, Stage
from torch_dataloader_utils.reading.combined import CombinedScan, datasets_of_units, scans_of
from torch_dataloader_utils.reading.row_count_scan import RowCounts
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.schemas.columns import available_columns, find_path, select_columns
from torch_dataloader_utils.sources.source import Source


@dataclass(frozen=True)
class Packing(Feature):
    """Documents packed into sequences of one length: what both methods have in common.

    Attributes:
        pack: says how.
        valid_key: key of the mask of real rows, or None if no plan repeats any.
        names: the columns that name documents.
    """

    pack: Pack
    valid_key: str | None = None
    names: tuple[str, ...] = ()

    @property
    def unit_tokens(self) -> int:
        """The tokens of a sequence (L)."""
        return self.pack.length

    def columns(self, schema: pa.Schema, *, whole: bool = False) -> pa.Schema:
        """The columns that are packed, if others are left out of batches; else all of them.

        Raises:
            ColumnNotFoundError: a column to pack does not exist.
        """
        pack, columns = self.pack, self.pack.columns
        if columns is None:
            return schema
        paths = {name: find_path(schema, name) for name in columns}
        for name, path in paths.items():
            if path is None:
                raise ColumnNotFoundError(f"pack={pack.short()}: no column {name!r}: {available_columns(schema, name)}")
        names = [name for name in self.names if name in schema.names]
        tops = {*(path[0] for path in paths.values() if path is not None), *names}
        if whole:
            return pa.schema([field for field in schema if field.name in tops])
        return select_columns(schema, list(dict.fromkeys([*columns, *names])))

    def known_counts(
        self, scan: ScanSpec, files: Sequence[DataFile], options: Options, name: str, *, limited: bool, counted: bool
    ) -> RowCounts | None:
        """None: rows are counted, which are documents; checks that they can be packed.

        Raises:
            ColumnNotFoundError: a column to pack does not exist.
            UnsupportedTypeError: a column to pack does not hold lists of numbers.
            OptionError: a column is not packed, a name is taken, or a padding value does not fit its column.
        """
        _checked(self.pack, scan, scan.converter.keys, options)
        return None

    def batches(self, maker: BatchMaker) -> BatchMaker:
        """Batches with what their models take."""
        if self.pack.keys is None or self.valid_key is None:
            return maker
        return LabelsForMask(maker, self.pack, self.valid_key)


@dataclass(frozen=True)
class BestFit(Packing):
    """Whole documents, each in the fullest sequence with room. How many sequences there are shows as they are made.

    An exact `len` would need a scan of all lengths, which are kept, and all windows of an epoch packed in advance.

    Attributes:
        source_key: the key of the dataset of each sequence; None for none.
    """

    source_key: str | None = None

    @property
    def unit(self) -> Unit:
        """A sequence."""
        return Unit.SEQUENCE

    def source(self, source: Source, keys: Sequence[str], options: Options) -> Source:
        """The sequences of these documents."""
        pack, group = self.pack, options.pack
        valid_key, sides, pads = _checked(pack, source.scan, keys, options)
        _check_source_key(self.source_key, sides, valid_key)
        named, names = datasets_of_units(source.scan, mixed=options.mixes_rows), _names(source.scan)
        windows, key = (group.documents, group.sequences), self.source_key
        stage = DocumentPacking(pads, pack, sides, *windows, valid_key, key, named, names)
        return replace(source, scan=_staged(source.scan, stage), keys=stage.keys, unit=self.unit)

    def plan(self, shape: PlanOptions) -> PlanOptions:
        """Plans that read enough documents together."""
        together = ReadTogether(PackOptions.documents, PackOptions.sequences * self.pack.length)
        return replace(shape, read_together=together)


@dataclass(frozen=True)
class Wrap(Packing):
    """Documents one after another, cut where a sequence ends: a row of a plan is a token.

    Only three places know of that: `TokenReader` maps tokens to parts of documents (and permutes these, where a window
    permutes rows), `SequenceMaker` cuts sequences, and the tokens of a rank are a multiple of `unit_rows`.

    Attributes:
        source_key: the key of the dataset of each sequence; None for none.
    """

    source_key: str | None = None

    @property
    def unit(self) -> Unit:
        """A token."""
        return Unit.TOKEN

    @property
    def unit_rows(self) -> int:
        """The tokens of a sequence (L)."""
        return self.pack.length

    def known_counts(
        self, scan: ScanSpec, files: Sequence[DataFile], options: Options, name: str, *, limited: bool, counted: bool
    ) -> RowCounts | None:
        """The tokens of each segment as its live rows, if footers have them; checks that they can be packed.

        Raises:
            CountsRequiredError: footers do not have them, and they will not be counted.
            ColumnNotFoundError, UnsupportedTypeError, OptionError: as with whole documents.
        """
        super().known_counts(scan, files, options, name, limited=limited, counted=counted)
        found = tokens_in_footers(scan, files, self.counted_key(scan))
        if found is None and not counted:
            raise tokens_unknown(options, name, limited=limited)
        return found

    def counted_key(self, scan: ScanSpec) -> str:
        """The key of the first column that is packed, whose lists say how many tokens documents have."""
        return _packed(self.pack, scan, scan.converter.keys)[0]

    def planned(self, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        """These files, whose live rows are tokens."""
        return in_tokens(files)

    def source(self, source: Source, keys: Sequence[str], options: Options) -> Source:
        """The tokens of these documents."""
        valid_key, (side,), _ = _checked(self.pack, source.scan, keys, options)
        _check_source_key(self.source_key, [side], valid_key)
        named, names = datasets_of_units(source.scan, mixed=options.mixes_rows), _names(source.scan)
        stage = Wrapping(side, valid_key, self.source_key, named, names, _splits_of_draws(source.scan))
        return replace(source, scan=_staged(source.scan, stage), keys=stage.keys, unit=self.unit)

    def plan(self, shape: PlanOptions) -> PlanOptions:
        """Plans of tokens, of which as many stay together as a sequence has."""
        length, buffer = self.pack.length, shape.buffer_rows
        return replace(
            shape,
            batch_size=shape.batch_size * length,
            buffer_rows=None if buffer is None else buffer * length,
            unit_rows=length,
        )

    def batches(self, maker: BatchMaker) -> BatchMaker:
        """Batches of whole sequences."""
        return SequenceMaker(super().batches(maker), self.pack, self.source_key)


@dataclass(frozen=True)
class UncountedWrap(Packing):
    """Documents one after another, cut where a sequence ends, for a mix without end, which needs no counts of tokens.

    A row of a plan is a document, and a row of a block a token.

    Attributes:
        source_key: the key of the dataset of each sequence; None for none.
    """

    source_key: str | None = None

    @property
    def unit(self) -> Unit:
        """A sequence."""
        return Unit.SEQUENCE

    @property
    def unit_rows(self) -> int:
        """The tokens of a sequence (L)."""
        return self.pack.length

    def source(self, source: Source, keys: Sequence[str], options: Options) -> Source:
        """The tokens of these documents."""
        valid_key, (side,), _ = _checked(self.pack, source.scan, keys, options)
        _check_source_key(self.source_key, [side], valid_key)
        named, names = datasets_of_units(source.scan, mixed=options.mixes_rows), _names(source.scan)
        stage = UncountedWrapping(side, valid_key, self.source_key, named, names)
        return replace(source, scan=_staged(source.scan, stage), keys=stage.keys, unit=self.unit)

    def plan(self, shape: PlanOptions) -> PlanOptions:
        """Plans whose batches are of so many tokens."""
        return replace(shape, batch_size=shape.batch_size * self.pack.length, unit_rows=self.pack.length)

    def batches(self, maker: BatchMaker) -> BatchMaker:
        """Batches of whole sequences."""
        return SequenceMaker(super().batches(maker), self.pack, self.source_key)


def packing(options: Options) -> Packing | None:
    """The feature of `pack`; None without it."""
    pack = options.pack.pack
    if pack is None:
        return None
    names = tuple(name for name in options.read.metadata_columns if name in OF_DOCUMENTS)
    if not options.pack.wraps:
        return BestFit(pack, _valid_key(options), names, options.mix.source_key)
    made = UncountedWrap if options.streams else Wrap
    return made(pack, _valid_key(options), names, options.mix.source_key)


def _check_source_key(source_key: str | None, sides: Sequence[PackedSide], valid_key: str | None) -> None:
    if source_key in keys_of(sides, valid_key):
        raise OptionError(
            f"source_key={source_key!r} is a key that pack adds to batches.",
            remedies=[use(source_key=f"{source_key}_dataset")],
        )


def _valid_key(options: Options) -> str | None:
    """The key of the mask of real rows, or None if no plan repeats any."""
    return options.batch.valid_key if repeats_rows(options) else None


def _pads(pack: Pack, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Any]:
    """What fills up the sequences of each key of tokens or labels, as a scalar of its dtype."""
    unknown = [name for name in pack.pads if name not in dtypes]
    if unknown:
        raise OptionError(f"Pack: pad names {unknown[0]!r}: expected one of the columns {list(dtypes)}.")
    return {key: _pad(pack, key, dtype) for key, dtype in dtypes.items()}


def _pad(pack: Pack, key: str, dtype: np.dtype[Any]) -> Any:
    value = pack.pad_of(key)
    remedies = [use(dtypes={key: "int64"})] if key not in pack.pads and value == IGNORED else []
    return pad_value(f"Pack: pad={{{key!r}: {value!r}}}", value, dtype, *remedies)


def _checked(
    pack: Pack, scan: Scan, keys: Sequence[str], options: Options
) -> tuple[str | None, tuple[PackedSide, ...], dict[str, Any]]:
    """The key of the mask of real rows, what is packed, and what fills it up; checks that it can be packed."""
    for part in scans_of(scan):
        if isinstance(part, ScanSpec) and part.copies is not None:
            raise PACKED_CLASSES.between("class_weights", "pack")
    report, valid_key = scan.report(), _valid_key(options)
    packed, names = _packed(pack, scan, keys), _names(scan)
    _check_columns(pack, [key for key in keys if key not in names], report)
    _check_names(pack, names)
    sides = sides_of(pack, packed)
    _check_pairs(sides, packed)
    _check_labels(sides, valid_key)
    added = {key for side in sides for key in (*KEYS, *side.added)} | {OF_DOCUMENTS[name] for name in names}
    taken = [key for key in (*packed, valid_key) if key in added]
    if taken:
        raise OptionError(f"{taken[0]!r} is a key that pack adds to batches: rename the column, or the valid_key.")
    contents = {key: content for side in sides for key, content in side.report(report).items() if key in side.filled}
    return valid_key, sides, _pads(pack, {key: np.dtype(content["dtype"]) for key, content in contents.items()})


def _names(scan: Scan) -> tuple[str, ...]:
    """The columns that name documents, in all datasets."""
    found = [_named(part) if isinstance(part, ScanSpec) else () for part in scans_of(scan)]
    return tuple(name for name in found[0] if all(name in each for each in found))


def _named(scan: ScanSpec) -> tuple[str, ...]:
    """The columns of a dataset that name documents; one that a transform replaced is another column."""
    dense = {plan.key for plan in scan.converter.plans if plan.leaf.report()["kind"] == "dense"}
    return tuple(name for name in scan.names if name in OF_DOCUMENTS and name in dense)


def _packed(pack: Pack, scan: Scan, keys: Sequence[str]) -> Sequence[str]:
    """The columns that are packed."""
    names = _names(scan)
    return pack.columns or [key for key in keys if key not in names]


def _check_names(pack: Pack, names: Sequence[str]) -> None:
    """Check that batches may have names of documents."""
    if names and pack.keys is not None:
        raise OptionError(
            f"pack={pack.short()}: batches for a model have no names of documents, which metadata_columns asks for: "
            "leave out metadata_columns.",
            remedies=[use(pack=pack.replace(keys=None))],
        )


def _splits_of_draws(scan: Scan) -> int | None:
    """The number of all splits, if a transform of the scan draws, so that documents are other ones in each lap."""
    draws = [part.draws for part in scans_of(scan) if isinstance(part, ScanSpec) and part.draws is not None]
    return draws[0].splits if draws else None


def _check_pairs(sides: Sequence[PackedSide], columns: Sequence[str]) -> None:
    """Check that pairs have two sides, and no column is of neither."""
    pack = sides[0].pack
    if not all(side.columns for side in sides) or {key for side in sides for key in side.columns} != set(columns):
        raise OptionError(
            f"pack={pack.short()}: expected columns chosen_* and rejected_*, the two sides of pairs, but the columns "
            f"are {list(columns)}. Name the sides so, and leave out others by Pack(columns=)."
        )


def _check_labels(sides: Sequence[PackedSide], valid_key: str | None) -> None:
    """Check that labels can be made, and that repeats can be told from other rows."""
    pack = sides[0].pack
    for side in sides:
        if side.made_of is not None and side.made_of not in side.columns:
            raise ColumnNotFoundError(
                f"pack={pack.short()}: no column {side.made_of!r} to make labels of: expected one of "
                f"{list(side.columns)}."
            )
        if side.made_of is not None and side.prefix + LABELS in side.columns:
            raise OptionError(
                f"pack={pack.short()}: {side.prefix + LABELS!r} is a column already, so that no labels are made.",
                remedies=[use(pack=pack.replace(labels=None))],
            )
        if pack.keys is not None and valid_key is not None and side.labels is None:
            raise OptionError(
                f"pack={pack.short()}: some rows may be repeated, and batches for a model have no mask of them, so "
                "that labels have to tell, but there are none.",
                remedies=[
                    use(pack=pack.replace(labels=side.columns[0].removeprefix(side.prefix))),
                    use(pack=pack.replace(keys=None)),
                ],
            )


def _staged(scan: Scan, stage: Stage) -> ScanSpec | CombinedScan:
    """The scan of sequences; these are marked as real, not the documents."""
    if isinstance(scan, CombinedScan):
        parts = tuple(replace(part, valid_key=None) for part in scan.scans)  # type: ignore[type-var]
        return replace(scan, scans=parts, stage=stage)
    assert isinstance(scan, ScanSpec)
    return replace(scan, stage=stage, valid_key=None)


def _check_columns(pack: Pack, keys: Sequence[str], report: Mapping[str, Mapping[str, Any]]) -> None:
    fit = [key for key in keys if report[key]["kind"] == "ragged"]
    for key in pack.columns or keys:
        if key not in keys:
            raise ColumnNotFoundError(f"pack={pack.short()}: no column {key!r}: expected one of {list(keys)}.")
        if key not in fit:
            kind = report[key].get("arrow", report[key]["kind"])
            ways = [use("leaves out others", pack=pack.replace(columns=fit))] if fit and pack.columns is None else []
            raise UnsupportedTypeError(
                f"pack={pack.short()}: column {key!r} is of type {kind}, but what is packed is lists of numbers, one "
                "for each token, which transform can make.",
                remedies=ways,
            )
