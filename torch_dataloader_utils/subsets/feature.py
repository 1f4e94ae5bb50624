"""Subsets and samples as a feature: which rows, segments or files of a manifest are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import itemgetter

from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.hashing import Choice, name_hash, number_hash
from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.options import Options, SubsetOptions
from torch_dataloader_utils.reading.chosen import RowMask
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, chosen_file
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.storage import usable_cores
from torch_dataloader_utils.subsets.choice import choice_of
from torch_dataloader_utils.subsets.keys import ChosenKeys, ChosenPlaces, check_keys


class Choosing(Feature):
    """Some of the rows, by the hash of their place or of their keys."""

    def manifest(self, manifest: FileManifest, options: Options) -> FileManifest:
        """The manifest with only the files, segments or rows that are chosen by their place.

        Raises:
            OptionError: the rows of the table have no place that stays.
        """
        if options.chooses_anchors and options.subset.unit == "row":
            _check_places(manifest, options.subset)
            files = tuple(replace(file, name_hash=name_hash(manifest.name_of(file))) for file in manifest.files)
            return replace(manifest, files=files)
        return _chosen_by_place(manifest, options.subset)

    def chosen(self, manifest: FileManifest, options: Options) -> ChosenKeys | None:
        """The rows to read by the values of key columns; None if they are chosen by their places.

        Raises:
            ColumnNotFoundError: there is no such column.
            OptionError: a column has a type that is not hashed.
        """
        choice, by = choice_of(options.subset), options.subset.by
        if choice is None or by is None:
            return None
        check_keys(by, manifest.schema)
        return None if options.chooses_anchors else ChosenKeys(choice, by)

    def anchors(self, options: Options) -> RowMask | None:
        """The windows whose anchors are chosen, if a subset does not take whole sequences."""
        choice, by = choice_of(options.subset), options.subset.by
        if choice is None or not options.chooses_anchors:
            return None
        return ChosenPlaces(choice) if by is None else ChosenKeys(choice, by)


def subsets(options: Options) -> Choosing | None:
    """The feature of `subset` and `fraction`; None without both."""
    return None if choice_of(options.subset) is None else Choosing()


def _chosen_by_place(manifest: FileManifest, options: SubsetOptions) -> FileManifest:
    """The manifest with only the files, segments or rows that are chosen by their place.

    Raises:
        OptionError: the rows of the table have no place that stays.
    """
    choice = choice_of(options)
    if choice is None or options.by is not None:
        return manifest
    _check_places(manifest, options)
    names = [manifest.name_of(file) for file in manifest.files]
    if options.unit != "row":
        _check_names(names, options)
    opener = manifest.opener
    if options.unit == "row" and not isinstance(opener, LiveOpener):
        opener = LiveOpener(opener)
    choose = partial(_chosen, choice=choice, unit=options.unit)
    with ThreadPoolExecutor(usable_cores(), "subset") as pool:
        files = tuple(file for file in pool.map(choose, manifest.files, names) if file.layout.segments)
    return replace(manifest, files=files, opener=opener)


def _check_places(manifest: FileManifest, options: SubsetOptions) -> None:
    """Check that rows have places that stay, if these are chosen.

    Raises:
        OptionError: they have none.
    """
    if manifest.relative is None and options.by is None and options.unit != "file":
        given = next(f"{name}={value.short()}" for name, value in options.hashed(unit=options.unit).items())
        raise OptionError(
            f"{given} by {options.unit} with an Iceberg table: its rows move when the table is rewritten. "
            "Choose them by the values of a key column. (Rows of tables of format version 3 have ids.)",
            remedies=[use("chooses files", **options.hashed(unit="file"))],
        )


def _check_names(names: Sequence[str], options: SubsetOptions) -> None:
    name, count = max(Counter(names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise OptionError(
            f"unit={options.unit!r}: {count} of the given files are called {name!r}, so all of them would be in one "
            "subset. Give the folder that contains them, or a glob, as path, or choose single rows.",
            remedies=[use(**options.hashed())],
        )


def _chosen(file: DataFile, path: str, choice: Choice, unit: str) -> DataFile:
    """The file with only its chosen rows or segments; without segments if none is chosen."""
    name = name_hash(path)
    if unit == "row":
        return chosen_file(file, choice, name)

    def holds(segment: Segment) -> bool:
        return choice.holds_one(name if unit == "file" else number_hash(name, segment.number))

    segments = tuple(filter(holds, file.layout.segments))
    return replace(file, layout=replace(file.layout, segments=segments))
