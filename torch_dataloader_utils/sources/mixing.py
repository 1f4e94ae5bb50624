"""How the datasets of a combination are mixed: resolves the options against the datasets' row counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import CountsRequiredError, OptionError
from torch_dataloader_utils.mixing.rows import MixRule, epoch_rows
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planning.mixing import part_rows
from torch_dataloader_utils.printing import plural, shown
from torch_dataloader_utils.reading.combined import CombinedScan
from torch_dataloader_utils.sources.source import Source

Names: TypeAlias = Sequence[str | int]  # of the datasets: as given, or their numbers

_SHARDING = ("interleave", "contiguous", "auto")  # all mean equal parts of each dataset


def labels(names: Names) -> list[str]:
    """The datasets' names in messages."""
    return [f"dataset {name!r}" for name in names]


def for_each(option: str, value: Any, names: Names, missing: float | None = None) -> tuple[float, ...] | None:
    """The value of an option for each dataset; None if the option was not given.

    Args:
        option: its keyword.
        value: a number for each, in a list or by name.
        names: of the datasets.
        missing: the number of a dataset that a dict does not name; None if it must name all.

    Raises:
        OptionError: the value is not one for these datasets.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        if len(value) != len(names):
            raise OptionError(
                f"{option}={shown(value)} for {len(names)} dataset(s): expected a positive number for each."
            )
        return tuple(value)
    if any(isinstance(name, int) for name in names):
        raise OptionError(f"{option}={shown(value)} by name, but datasets is a list: pass a dict of datasets.")
    wrong = [name for name in value if name not in names]
    wrong += [name for name in names if missing is None and name not in value]
    if wrong:
        raise OptionError(
            f"{option}={shown(value)}: expected a number for each of {', '.join(map(repr, names))}; "
            f"{', '.join(map(repr, wrong))} {'is' if len(wrong) == 1 else 'are'} not in both."
        )
    return tuple(value.get(name, missing) for name in names)


def is_mixed(options: Options, datasets: int) -> bool:
    """Whether rows are mixed, not splits; for a single dataset, only if its rows are repeated or left out."""
    mix = options.mix
    more = mix.stop != "once" or mix.repeat is not None or mix.rows_per_epoch is not None
    return mix.batches != "splits" and (datasets > 1 or more)


def check_mixable(options: Options) -> None:
    """Check that the options work with a mix of rows.

    Raises:
        OptionError: an option does not.
    """
    shard, last_batch = options.shard, options.batch.last_batch
    if options.pack.pack is not None:
        raise OptionError(
            f"pack={options.pack.pack} with batches={options.mix.batches!r}: sequences hold several rows. Use "
            "batches='splits', which merges the datasets split by split."
        )
    if options.bucket.batch_tokens is not None:
        raise OptionError(
            f"batch_tokens={options.bucket.batch_tokens} with batches={options.mix.batches!r} mixes fixed numbers of "
            "rows: use batches='splits', which merges the datasets split by split."
        )
    remedies = {
        "sharding": (shard.sharding not in _SHARDING, "each dataset is cut into equal parts for the ranks"),
        "canonical_ranks": (shard.canonical_ranks is not None, "the schedule is per rank"),
        "steps_per_epoch": (
            shard.steps_per_epoch is not None,
            "set rows_per_epoch to steps x batch_size x ranks, with even='drop'",
        ),
        "last_batch": (last_batch == "wrap", "use last_batch='pad' or even='pad'"),
    }
    for name, (given, why) in remedies.items():
        if given:
            value = last_batch if name == "last_batch" else getattr(shard, name)
            raise OptionError(
                f"{name}={shown(value)} with batches={options.mix.batches!r}: {why}. Leave it out, or use "
                "batches='splits', which merges the datasets split by split."
            )
    if options.mix.batches == "single" and "pad" in (shard.even, last_batch):
        name = "even" if shard.even == "pad" else "last_batch"
        raise OptionError(
            f"{name}='pad' with batches='single': each dataset has a last batch of its own. Use 'drop', or "
            "batches='proportional'."
        )


def check_counted(labelled: Sequence[tuple[str, bool]], options: Options) -> None:
    """Check that the rows of each dataset are known.

    Args:
        labelled: each dataset's label, and whether its rows are known.
        options: of the combination.

    Raises:
        CountsRequiredError: those of one are known only after reading.
    """
    for label, counted in labelled:
        if not counted:
            raise CountsRequiredError(
                f"batches={options.mix.batches!r} needs the number of rows of each dataset, but that of {label} is "
                "known only after reading: pass count_rows=True to its create_dataloader, or use batches='splits', "
                "which merges the datasets split by split."
            )


def mixing_of(source: Source, names: Names, options: Options) -> Mapping[str, Any] | None:
    """How plans mix the rows of these datasets, as plain values (see `PlanOptions`); None if they merge splits.

    Args:
        source: over all datasets.
        names: of the datasets.
        options: of the combination.

    Raises:
        OptionError: the options do not fit the datasets.
        EmptyDatasetError: a dataset that must be repeated has no rows.
    """
    mix = options.mix
    if not is_mixed(options, len(names)):
        return None
    rule = MixRule(
        weights=for_each("weights", mix.weights, names),
        temperature=mix.temperature,
        stop=mix.stop,
        repeat=for_each("repeat", mix.repeat, names, missing=1.0),
        rows_per_epoch=mix.rows_per_epoch,
        max_repeats=mix.max_repeats,
    )
    taken = epoch_rows(part_rows(source.splits, len(names)), labels(names), rule)
    return {"batches": mix.batches, "rows": list(taken.rows), "rates": list(taken.rates)}


def mix_in_words(source: Source, options: Options) -> str:
    """What an epoch takes of each dataset, and how batches mix them; "" if rows are not mixed."""
    mixing = options.mixing
    if mixing is None:
        return ""
    names = source.scan.names if isinstance(source.scan, CombinedScan) else ()
    sizes, total = part_rows(source.splits, len(source.parts)), max(sum(mixing["rows"]), 1)
    of_each = []
    for number, (rows, size) in enumerate(zip(mixing["rows"], sizes, strict=True)):
        laps = "" if rows == size else f", {rows / size:.3g} laps"
        name = repr(names[number]) if names else number
        of_each.append(f"{rows / total:.1%} {name} ({plural(rows, 'row')}{laps})")
    batches = "each batch is of one" if mixing["batches"] == "single" else "each batch has rows of each"
    return f"{batches}: {', '.join(of_each)}"
