"""The datasets of a combination whose members may be combinations: taken out, with names and options checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import MixOptions, Options
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.reading.bucketed import Bucketing
from torch_dataloader_utils.reading.combined import CombinedScan
from torch_dataloader_utils.reading.samples import SampleScan
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.group import Facts, Group, Names
from torch_dataloader_utils.sources.source import Source

_SHARES = ("weights", "temperature", "batches")  # what a combination may have within another


def flattened(datasets: Sequence[Any], names: Names, options: Options) -> tuple[Group, list[Any]]:
    """What a combination is made of, and all datasets, with those of the combinations among them.

    Args:
        datasets: sources, and map-style datasets.
        names: of these.
        options: of the combination.

    Raises:
        OptionError: a combination has options that it cannot have within another, or two datasets have one name.
    """
    members: list[Facts | Group] = []
    flat: list[Any] = []
    for dataset, name in zip(datasets, names, strict=True):
        if isinstance(dataset, Source) and dataset.group is not None:
            _check_within(dataset, f"the combination {name!r}", options)
            members.append(dataset.group)
            flat += _datasets(dataset, dataset.group)
        else:
            facts = Facts()
            if isinstance(dataset, Source):
                facts = Facts(dataset.exact, dataset.subset, dataset.skipped, dataset.counts_rows)
            members.append(facts)
            flat.append(dataset)
    group = Group(tuple(names), tuple(members), options.mix)
    twice = [path for path, times in Counter(group.paths).items() if times > 1]
    if twice:
        raise OptionError(f"two datasets would have the name {shown(twice[0])}: rename one of them.")
    return group, flat


def _check_within(source: Source, label: str, options: Options) -> None:
    """Check that a combination's options can be those of a part of another.

    Raises:
        OptionError: they cannot.
    """
    mix = source.group.mix if source.group is not None else MixOptions()
    for item in fields(MixOptions):
        value = getattr(mix, item.name)
        if item.name not in _SHARES and value != item.default:
            where = ', for its datasets by path, such as "text/web"' if item.name == "repeat" else ""
            raise OptionError(
                f"{label} has {item.name}={shown(value)}, but within another one only its weights count: pass "
                f"{item.name}= to the outer combine{where}."
            )
    if mix.phases is not None:
        raise OptionError(
            f"{label} has weights that change, but within another one they are constant: change those of the outer "
            "combine."
        )
    if mix.batches != options.mix.batches:
        raise OptionError(
            f"{label} has batches={mix.batches!r}, but the outer one has batches={options.mix.batches!r}, and one "
            "schedule mixes all datasets: pass the same to both."
        )
    packing = source.scan.packing if isinstance(source.scan, CombinedScan) else None
    if packing is not None:
        name = "batch_tokens" if isinstance(packing, Bucketing) else "pack"
        raise OptionError(f"{label} has {name}: pass it to the outer combine, for all datasets.")


def _datasets(source: Source, group: Group) -> Iterator[Any]:
    """The datasets of a combination, as they were before they were combined."""
    scans = source.scan.scans if isinstance(source.scan, CombinedScan) else ()
    for part, (scan, facts) in enumerate(zip(scans, group.facts, strict=True)):
        if isinstance(scan, SampleScan):
            yield scan.dataset
            continue
        files = (file for file in source.files if file.info.part == part)
        yield Source(
            tuple(replace(file, info=replace(file.info, part=0)) for file in files),
            Splits.of((), ()),  # made anew
            replace(cast(ScanSpec, scan), valid_key=None),
            facts.exact,
            (),
            skipped=facts.skipped,
            subset=facts.subset,
            counts_rows=facts.counts_rows,
        )
