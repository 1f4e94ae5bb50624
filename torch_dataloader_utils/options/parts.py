"""The keywords of a combination: those of the whole, and those of its parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options.groups import ConvertOptions, ReadOptions
from torch_dataloader_utils.options.keywords import Options, options_of, parse_options, parse_stream
from torch_dataloader_utils.options.mix import MixOptions
from torch_dataloader_utils.options.ranks import RankOptions
from torch_dataloader_utils.options.sources import SourceValue
from torch_dataloader_utils.options.subset import SubsetOptions
from torch_dataloader_utils.options.together import check_together
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import plain_value

_RANKS = frozenset(item.name for item in fields(RankOptions))


def of_parts() -> frozenset[str]:
    """The keywords that say what a part reads; those given to `combine` are the defaults of all parts."""
    groups = (ReadOptions, SubsetOptions, ConvertOptions)
    names = {"count_rows", *(item.name for group in groups for item in fields(group))}
    return frozenset(options_of("combine").keys() & names)


def parse_combination(keywords: Mapping[str, Any], datasets: int) -> tuple[Options, dict[str, Any]]:
    """The grouped, checked options of a combination, without those of its parts; and the keywords of these.

    Args:
        keywords: the keywords.
        datasets: the number of datasets, with those of the combinations among them.

    Raises:
        UnknownOptionError: a keyword does not exist, or is a field of a source.
        OptionError: a value cannot work.
    """
    options = parse_options({**_of_packed(keywords), **keywords}, "combine", datasets)
    whole = replace(options, read=ReadOptions(), subset=SubsetOptions(), convert=ConvertOptions())
    return whole, {name: plain_value(value) for name, value in keywords.items() if name in of_parts()}


def _of_packed(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """How datasets are packed that nothing mixes: with documents of all in one sequence, which fills most of them."""
    mixes = (item.name for item in fields(MixOptions) if item.metadata["keyword"])
    packs = keywords.get("pack") is not None
    return {"batches": "splits"} if packs and all(keywords.get(name) is None for name in mixes) else {}


def parse_part(
    label: str, source: SourceValue | None, own: Mapping[str, Any], defaults: Mapping[str, Any], whole: Options
) -> Options:
    """The grouped, checked options with which a part of a combination is opened.

    Args:
        label: the part's name in messages.
        source: what it reads; None for a table of another format.
        own: its own keywords.
        defaults: the keywords of all parts.
        whole: the options of the combination.

    Raises:
        UnknownOptionError: a keyword does not exist, or is a field of the source.
        OptionError: a value cannot work, or is one of the whole.
    """
    wrong = {name: value for name, value in own.items() if name in options_of("combine").keys() - of_parts()}
    if wrong:
        texts = ", ".join(f"{name}={shown(value)}" for name, value in wrong.items())
        raise OptionError(
            f"{label} has {texts}, but all parts have one {', '.join(wrong)}: pass it to combine instead."
        )
    packed = whole.pack.pack is not None
    part = parse_stream(source, {**defaults, **own}, part=label, part_is_packed=packed)
    ranks = {name: getattr(whole.shard, name) for name in _RANKS}
    part = replace(
        part,
        split=whole.split,
        shard=replace(part.shard, **ranks),
        batch=replace(part.batch, output_format=whole.batch.output_format),
        worker=whole.worker,
    )
    check_together(part)
    return part


def unused_in_combination(options: Options, given: Collection[str]) -> dict[str, Any]:
    """The options of a loader that have no effect where its dataset is a part of a combination, as they can be given.

    Args:
        options: of the loader.
        given: the keywords of the combination, which decides about these.
    """
    apart = {"output_format", *of_parts(), *(item.name for item in fields(MixOptions)), *given}
    apart |= _RANKS if _RANKS.intersection(given) or options.shard.num_ranks == 1 else set()
    if options.split.split_bytes == options.shuffle.split_bytes:  # what None has become
        apart.add("split_bytes")
    found = {}
    for name, item in options_of("combine").items():
        if name in apart:
            continue
        value, check = options.given(name), item.metadata["check"]
        default = item.default if check is None else check(name, item.default)
        if value is not default and not (type(value) is type(default) and value == default):
            found[name] = value
    return found
