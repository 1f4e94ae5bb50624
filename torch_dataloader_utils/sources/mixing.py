"""How the datasets of a combination are mixed: resolves the options against the datasets' row counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_dataloader_utils.errors import CountsRequiredError, OptionError, Remedy, leave_out, use
from torch_dataloader_utils.mixing.curriculum import Curriculum, WeightPhase, checked
from torch_dataloader_utils.mixing.rows import MixRule, epoch_rows
from torch_dataloader_utils.options import MixOptions, Options
from torch_dataloader_utils.planning.mix_epochs import full_step, mixing_in_rows
from torch_dataloader_utils.planning.mixing import part_rows
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.printing import plural, shown
from torch_dataloader_utils.reading.combined import CombinedScan
from torch_dataloader_utils.sources.group import Group, for_each, labels, repeats, weight_trees
from torch_dataloader_utils.sources.source import Source

_PHASES_SHOWN = 4
_SHARDING = ("interleave", "contiguous", "auto")  # all mean equal parts of each dataset


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
            f"pack={options.pack.pack.short()} with batches={options.mix.batches!r}: sequences hold several rows.",
            remedies=[_by_splits(options)],
        )
    buckets = options.bucket.batch_tokens
    if buckets is not None:
        raise OptionError(
            f"batch_tokens={buckets.short()} with batches={options.mix.batches!r} mixes fixed numbers of rows.",
            remedies=[_by_splits(options)],
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
                f"{name}={shown(value)} with batches={options.mix.batches!r}: {why}.",
                remedies=[leave_out(name), _by_splits(options)],
            )
    if options.mix.batches == "single" and "pad" in (shard.even, last_batch):
        name = "even" if shard.even == "pad" else "last_batch"
        raise OptionError(
            f"{name}='pad' with batches='single': each dataset has a last batch of its own.",
            remedies=[Remedy({name: "drop"}), use(batches="proportional")],
        )


def _by_splits(options: Options) -> Remedy:
    """The remedy to merge splits instead of mixing rows, without the options that only a mix of rows has."""
    mix = options.mix
    lengths = {"stop": mix.stop != "once", "repeat": mix.repeat, "rows_per_epoch": mix.rows_per_epoch}
    shaped = mix.phases or mix.temperature != 1 or mix.max_repeats is not None
    others = {"weights": shaped, "source_key": mix.source_key}
    names = [name for name, value in {**lengths, **others}.items() if value]
    return use("merges the datasets split by split", batches="splits", without=names)


def check_counted(labelled: Sequence[tuple[str, bool, bool]], options: Options) -> None:
    """Check that the rows of each dataset are known.

    Args:
        labelled: each dataset's label, whether its rows are known, and whether it has `class_weights`.
        options: of the combination.

    Raises:
        CountsRequiredError: those of one are known only after reading.
    """
    for label, counted, drawn in labelled:
        if drawn:
            raise CountsRequiredError(
                f"batches={options.mix.batches!r} needs the number of rows of each dataset, but class_weights of "
                f"{label} draws the copies of rows in each epoch. Make one dataset of each class, and pass repeat= to "
                "combine, or do not mix rows.",
                remedies=[_by_splits(options)],
            )
        if not counted:
            raise CountsRequiredError(
                f"batches={options.mix.batches!r} needs the number of rows of each dataset, but that of {label} is "
                "known only after reading. Pass count_rows=True for it, or do not mix rows.",
                remedies=[_by_splits(options)],
            )


def check_weighable(labelled: Sequence[tuple[str, bool]]) -> None:
    """Check that the rows of each dataset are known, where weights follow from them.

    Args:
        labelled: each dataset's label, and whether the rows of its splits are known.

    Raises:
        CountsRequiredError: those of one are known only after reading.
    """
    for label, counted in labelled:
        if not counted:
            raise CountsRequiredError(
                f"a combination without weights shares its weight by number of rows, but that of {label} is known only "
                "after reading: pass weights= to each combination, or count_rows=True for the dataset."
            )


def check_shown(options: Options) -> None:
    """Check that the weights by which splits are merged are not all undone by the order of rows.

    Raises:
        OptionError: they are.
    """
    if options.shuffle.permutes == "all":
        raise OptionError(
            "weights with batches='splits' and shuffle='all': rows are drawn from all splits at once, whatever the "
            "order of these is, so weights have no effect.",
            remedies=[use(shuffle="splits"), use(batches="proportional")],
        )


def mixing_of(source: Source, options: Options) -> Mapping[str, Any] | None:
    """How plans mix the rows of a combination, as plain values (see `PlanOptions`); None if they merge splits.

    Args:
        source: over all datasets.
        options: of the combination.

    Raises:
        OptionError: the options do not fit the datasets.
        EmptyDatasetError: a dataset that must be repeated has no rows.
    """
    mix, group = options.mix, source.group
    if group is None or not is_mixed(options, len(source.parts)):
        return None
    sizes, names = part_rows(source.splits, len(source.parts)), labels(group.paths)
    length: dict[str, Any] = {"stop": mix.stop, "repeat": repeats(group, mix.repeat), "max_repeats": mix.max_repeats}
    if mix.phases is None:
        rule = MixRule(**length, rows_per_epoch=mix.rows_per_epoch, **_weighting(group, sizes))
        taken = epoch_rows(sizes, names, rule)
        run = _of_run(mix, taken.rows, sizes)
        return {"batches": mix.batches, "rows": list(taken.rows), "rates": list(taken.rates), **run}
    pairs = zip(mix.phases, weight_trees(group), strict=True)
    phases = tuple(WeightPhase(first, tree.of_datasets(sizes)) for (first, _), tree in pairs)
    fixed = None if mix.rows_per_epoch else epoch_rows(sizes, names, MixRule(**length)).rows
    total = mix.rows_per_epoch or sum(fixed or ())
    unit = {"unit": "step"} if mix.weights_unit == "step" else {}
    run = {} if fixed is None else _of_run(mix, fixed, sizes)
    return {"batches": mix.batches, **unit, **checked(Curriculum(phases, total, fixed), sizes, names).plain, **run}


def _of_run(mix: MixOptions, rows: Sequence[int], sizes: Sequence[int]) -> dict[str, Any]:
    """The mark of a mix whose epochs happen to have every row once, but continue where the last one ended."""
    once = mix.stop == "once" and mix.repeat is None and mix.rows_per_epoch is None
    return {} if once or list(rows) != list(sizes) else {"run": True}


def _weighting(group: Group, sizes: Sequence[int]) -> dict[str, Any]:
    """The fields of a rule that say what the datasets weigh."""
    if group.is_flat:
        return {"weights": for_each("weights", group.mix.weights, group.names), "temperature": group.mix.temperature}
    (tree,) = weight_trees(group)
    return {"weights": tree.of_datasets(sizes) if tree.chosen else None}


def rows_of_mix(mixing: Mapping[str, Any], epoch: int) -> list[int]:
    """The rows that an epoch takes of each dataset; `mixing` with boundaries that are rows."""
    curriculum = Curriculum.of(mixing)
    if curriculum is None:
        return list(mixing["rows"])
    return [sum(rows) for rows in zip(*(stretch.rows for stretch in curriculum.of_epoch(epoch)), strict=True)]


def subset_in_words(source: Source) -> str:
    """Which rows `subset`, `fraction` and `limit` choose, of each dataset by its name; "" for all."""
    if source.group is None or not source.subset:
        return source.subset
    texts = [facts.subset or "all rows" for facts in source.group.facts]
    return "; ".join(f"{name}: {text}" for name, text in zip(_names(source), texts, strict=True))


def _names(source: Source) -> list[str]:
    """The datasets' names, or else their numbers, as text."""
    names = list(map(repr, source.scan.names)) if isinstance(source.scan, CombinedScan) else []
    return names or [str(number) for number in range(len(source.parts))]


def mix_in_words(
    source: Source, options: Options, epoch: int, shape: PlanOptions, num_ranks: int, windows: int | None = None
) -> str:
    """What an epoch takes of each dataset, and how batches or splits mix them; "" for a single dataset.

    Args:
        source: of the combination.
        options: of the combination.
        epoch: the epoch.
        shape: of its plans.
        num_ranks: the number of ranks.
        windows: into how many a rank's rows are cut where they are shuffled within windows; None: they are not.
    """
    names, step_rows = _names(source), num_ranks * shape.batch_rows(num_ranks)
    if shape.mixing is None:
        return _splits_in_words(source, options, windows) if len(names) > 1 else ""
    mixing = mixing_in_rows(shape.mixing, shape, num_ranks)
    sizes, of_epoch = part_rows(source.splits, len(source.parts)), rows_of_mix(mixing, epoch)
    total = max(sum(of_epoch), 1)
    of_each = []
    for name, rows, size in zip(names, of_epoch, sizes, strict=True):
        laps = "" if rows == size else f", {rows / max(size, 1):.3g} laps"
        of_each.append(f"{rows / total:.1%} {name} ({plural(rows, 'row')}{laps})")
    batches = "each batch is of one" if mixing["batches"] == "single" else "each batch has rows of each"
    curriculum = Curriculum.of(mixing)
    if curriculum is None:
        return f"{batches}: {', '.join(of_each)}{_end_in_words(names, of_epoch, mixing['rates'], step_rows)}"
    full = full_step(shape, num_ranks) is not None
    steps = [curriculum.step(phase.first, step_rows, full=full) for phase in curriculum.phases]
    return f"{batches}, in epoch {epoch}: {', '.join(of_each)}; {_phases_in_words(curriculum, names, steps)}"


def _end_in_words(names: Sequence[str], rows: Sequence[int], rates: Sequence[float], step_rows: int) -> str:
    """From which step on weights no longer show, because a dataset has ended; "" if all end together.

    Args:
        names: of the datasets.
        rows: of each in the epoch.
        rates: at which they are delivered, as long as there are any.
        step_rows: rows per step of all ranks.
    """
    ends = {name: count / rate for name, count, rate in zip(names, rows, rates, strict=True) if count}
    end = min(ends.values(), default=0.0)
    step = int(sum(min(count, end * rate) for count, rate in zip(rows, rates, strict=True)) // step_rows)
    if step >= sum(rows) // step_rows:
        return ""
    first = next(name for name, place in ends.items() if place == end)
    return f"; by weight until {first} ends: from step {step:,} on, batches have more of the others"


def _splits_in_words(source: Source, options: Options, windows: int | None) -> str:
    """How the splits of several datasets are merged."""
    group, splits = source.group, source.splits
    assert group is not None
    rows = part_rows(splits, len(source.parts))
    unknown = {splits.files[file].info.part for file in splits.file[~splits.counted].tolist()}
    weights = [part.weight for part in source.parts if part.weight is not None]
    total = sum(weights or ([] if unknown else rows))
    texts = []
    for part, (name, facts) in enumerate(zip(_names(source), group.facts, strict=True)):
        share = f"{(weights or rows)[part] / total:.1%} " if total else ""
        count = plural(rows[part], source.unit.planned) + ("" if facts.exact else " before filters")
        texts.append(f"{share}{name} ({'rows known only after reading' if part in unknown else count})")
    how = "by weight, until one of them ends" if weights else "in proportion to their size"
    return f"splits are merged {how}: {', '.join(texts)}{_unseen(options, windows) if weights else ''}"


def _unseen(options: Options, windows: int | None) -> str:
    """Where the weights by which splits are merged do not show."""
    pack = options.pack.pack
    if windows == 1:
        return "; each rank shuffles all its rows in one window, in which weights do not show"
    if windows is not None:
        return "; rows are shuffled within windows, in which weights do not show"
    if pack is not None and not options.pack.wraps:
        return "; documents are packed within windows, in which weights do not show"
    return ""


def _phases_in_words(curriculum: Curriculum, names: Sequence[str], steps: Sequence[int]) -> str:
    """The weights from each row of the run on, with the step that has the row."""
    texts = []
    for phase, step in zip(curriculum.phases[:_PHASES_SHOWN], steps, strict=False):
        pairs = zip(phase.weights, names, strict=True)
        shares = ", ".join(f"{float(weight / sum(phase.weights)):.1%} {name}" for weight, name in pairs)
        texts.append(f"from step {step:,} (row {phase.first:,}) on {shares}")
    more = len(curriculum.phases) - len(texts)
    return "; ".join([*texts, *([f"and {plural(more, 'more change')}"] if more else [])])
