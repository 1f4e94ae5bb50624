"""Writes a loader's state and reads it back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from torch_dataloader_utils.checkpoint.form import OF_RANK, VERSION, check_form, check_seal, of_rank, plain, sealed
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.checkpoint.state_dict import (
    COUNTS,
    ROW_WEIGHTS,
    UNKNOWN,
    digests_of,
    is_between_windows,
    link_of,
    phase_of,
    short,
)
from torch_dataloader_utils.errors import CheckpointMismatchError, DataLoaderUtilsError
from torch_dataloader_utils.filters.arrow import identity_of
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import END, RankCursor
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planner import Planner, digest, plan_options
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.phases import Phase, plain_options
from torch_dataloader_utils.planning.plan import MIX_VERSION, PLAN_VERSION, REST_VERSION
from torch_dataloader_utils.planning.sharding import resolve_auto
from torch_dataloader_utils.planning.splits import UNKNOWN as ABSENT
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.schemas.merge import kept_schema
from torch_dataloader_utils.sources.skipped import skipped_names
from torch_dataloader_utils.sources.source import Source

# Checks whether a state can be resumed: its phases against the options of a loader.


def check_shareable(last: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that the rows a phase left can be sharded under other options.

    Args:
        last: the options of the phase.
        current: the options of the loader.

    Raises:
        CheckpointMismatchError: the phase has its own order, which cannot be resumed under other options.
    """
    if "strategy" in {**last, **current}:
        raise CheckpointMismatchError(
            "a strategy with generate() assigns rows itself, so its states can be resumed only under the same "
            f"options. The state has {difference(last, current)}."
        )
    if last.get("canonical_ranks") != current.get("canonical_ranks"):
        raise CheckpointMismatchError(
            "canonical_ranks makes an order that does not depend on the ranks, so it can be resumed only with the same "
            f"canonical_ranks. The state has {difference(last, current)}."
        )
    if current.get("canonical_ranks"):
        raise CheckpointMismatchError(
            "with canonical_ranks, the global batch (num_ranks x batch_size) and the other options that shape the "
            f"order must stay the same. The state has {difference(last, current)}."
        )


def check_cursors(past: Sequence[Phase], current: Mapping[str, Any]) -> None:
    """Check that each rank's progress is known, for data whose rows are known only after reading.

    Args:
        past: the phases.
        current: the options of the loader.

    Raises:
        CheckpointMismatchError: cursors of ranks are missing, or a rank had finished with rows left out.
    """
    for phase in past:
        _check_finished(phase)
        missing = [rank for rank in range(phase.options["num_ranks"]) if rank not in phase.cursors]
        if missing and phase.begun:
            raise CheckpointMismatchError(
                "row counts are known only after reading, and the state does not hold the position of rank(s) "
                f"{', '.join(map(str, missing))}: it can be resumed only by the same kind of loader with the same "
                f"options ({difference(phase.options, current)}). Save loader.state_dict(all_ranks=True), or join the "
                "states of all ranks with merge_state_dicts([...])."
            )


def _check_finished(phase: Phase) -> None:
    """Check that no rank ended with rows left out whose number is unknown."""
    reasons = [
        f"{name}={value!r}"
        for name, value in (("last_batch", "drop"), ("even", "sync"))
        if phase.options.get(name) == value
    ]
    if phase.options.get("steps_per_epoch") is not None:
        reasons.append(f"steps_per_epoch={phase.options['steps_per_epoch']}")
    ended = [rank for rank, cursor in phase.cursors.items() if cursor is not None and END in cursor.shards]
    if reasons and ended:
        raise CheckpointMismatchError(
            f"rank(s) {', '.join(map(str, ended))} had finished the epoch when the states were taken, and left "
            f"out rows ({', '.join(reasons)}). Row counts are known only after reading, so the state does not say "
            "which. Resume with the same options, or from states taken before any rank finished."
        )


def check_reader(state: Mapping[str, Any], worker: int | None, current: Mapping[str, Any]) -> None:
    """Check that the state belongs to the same reader: this package's loader, or a worker of a foreign one.

    Args:
        state: the state.
        worker: the index of the worker that loads it; None for our loader.
        current: the options of the loader.

    Raises:
        CheckpointMismatchError: it belongs to another one.
    """
    saved = state.get("worker")
    if saved is None and (worker is None or not state.get("skip")):
        return  # a state of our own loader: the workers share the rest
    last = state["links"][-1]["options"]
    if saved != worker or dict(last) != current:
        raise CheckpointMismatchError(
            f"the state belongs to {_reader(saved)}, but was loaded into {_reader(worker)}; it has "
            f"{difference(last, current)}. A worker's state can be resumed only by the same worker with the same "
            "options, and steps cannot be skipped there."
        )


def _reader(worker: int | None) -> str:
    return "this package's loader" if worker is None else f"worker {worker} of a foreign loader"


def difference(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """The options that differ, both sides."""
    names = [name for name in {**saved, **current} if saved.get(name) != current.get(name)]
    theirs = ", ".join(f"{name}={saved.get(name)!r}" for name in names)
    ours = ", ".join(f"{name}={current.get(name)!r}" for name in names)
    return f"{theirs}; here: {ours}" if names else "the same options as here"


# The part of a state that identifies its data: digests and short texts, without secrets.

_BUCKETS, _PREPROCESS, _SEQUENCES = "buckets", "preprocess", "sequences"
_GREW_FROM = ", which grew from "
SKIPPED = "skipped"  # the files that are left out: they explain another list of files


def counts_are_known(source: Source) -> bool:
    """Whether the rows that each split delivers are known without reading."""
    return source.exact and source.splits.uncounted is None


def fingerprint(source: Source, options: Options) -> dict[str, list[str]]:
    """For each component of what is read, a digest and a short text."""
    files, splits, scan = source.files, source.splits, source.scan
    rows = sum(file.info.record_count or 0 for file in files)
    names = _relative([(file.info.part, file.info.path) for file in files])
    named = [f"{name} {file.info.file_size} {file.info.record_count}" for name, file in zip(names, files, strict=True)]
    schema = [f"{item.name}: {item.type}" for item in kept_schema(scan.output_schema)]
    predicate = identity_of(scan.predicate)
    nulls = options.convert.nulls_text
    order = options.shuffle
    shuffle = {"": "False", "rows": "True"}.get(order.permutes, order.permutes)
    mixed = [] if not options.features.mixes_rows else [", mixed by rows"]
    known = "known" if counts_are_known(source) else UNKNOWN
    components: dict[str, tuple[Sequence[str], str]] = {
        "files": (named, f"{len(files)} files, {rows} rows"),
        "schema": (schema, f"{len(schema)} columns: {short(', '.join(schema))}"),
        "filters": ([predicate], short(predicate)),
        "nulls": ([nulls], short(nulls)),
        "origin": ([source.origin], short(source.origin) or "files"),
        "mixing": ([str(source.parts), *mixed], f"{len(source.parts)} dataset(s){''.join(mixed)}"),
        "splits": (list(_split_texts(splits)), f"{len(splits)} splits"),
        "shuffle": ([shuffle], shuffle),
        "shuffle_seed": ([str(order.shuffle_seed)], str(order.shuffle_seed)),
        COUNTS: ([known], known),
    }
    texts = {
        "subset": source.subset,
        "pack": options.pack.text,
        _SEQUENCES: options.sequence.text,
        _BUCKETS: source.buckets,
        _PREPROCESS: scan.mark,
        ROW_WEIGHTS: "" if source.weights is None else source.weights.text,
    }
    for name, text in texts.items():
        components[name] = ([text] if text else [], short(text))
    if scan.marks_before:
        text = f"{scan.mark}{_GREW_FROM}{' '.join(scan.marks_before)}"
        components[_PREPROCESS] = (components[_PREPROCESS][0], text)
    skipped = [_unsigned(file.relative or file.path, file.path) for file in source.skipped]
    components[SKIPPED] = (skipped, short(skipped_names(source.skipped)) if skipped else "")
    return {name: [digest_of(parts), text] for name, (parts, text) in components.items()}


def digest_of(parts: Sequence[str]) -> str:
    """The digest of a component."""
    return f"{digest(parts):016x}"


_WEIGHTS = (
    "Rows are drawn by other weights than those of the state: before you load it, call loader.set_row_weights(...) "
    "with what loader.row_weights() returned when it was taken (an array, or None), and the same rows_per_epoch."
)
# Components that states did not have at first unless there was something to tell.
_NOTHING = dict.fromkeys(("subset", "pack", _SEQUENCES, _BUCKETS, _PREPROCESS, ROW_WEIGHTS, SKIPPED), digest_of([]))


def _split_texts(splits: Splits) -> Iterator[str]:
    """The part, rows and segments of each split, as `str` of its values has them; from columns, as there are many."""
    parts = [file.info.part for file in splits.files]
    columns = (splits.file, splits.start, splits.stop, splits.first, splits.last)
    for file, start, stop, first, last in zip(*(column.tolist() for column in columns), strict=True):
        rows = None if start == ABSENT else f"Rows(start={start}, stop={stop}, step=1, block=1, phase=0)"
        yield f"{parts[file]} {rows} {None if first == ABSENT else (first, last)}"


def different_data(
    saved: Mapping[str, list[str]],
    here: Mapping[str, list[str]],
    versions: tuple[int, int],
    *,
    between_windows: bool = False,
) -> str | None:
    """A text that lists how a state's data differs from the data here; None if it is the same.

    Args:
        saved: the fingerprint in the state.
        here: the fingerprint of what this loader reads.
        versions: of the plan algorithm: in the state, and here.
        between_windows: whether no window has been begun, so that its rows may be cut into other batches by length.
    """
    was, now = ({**_NOTHING, **digests_of(data)} for data in (saved, here))
    same_files = was.get("files") == now.get("files")
    if between_windows and _NOTHING[_BUCKETS] not in (was[_BUCKETS], now[_BUCKETS]):
        now[_BUCKETS] = was[_BUCKETS]
    lines = [
        f"  {name}: {_shown(saved.get(name))} in the state, {_shown(here.get(name))} here{_growth(name, saved, here)}"
        for name in {**here, **saved}
        if was.get(name) != now.get(name) and not (same_files and name == SKIPPED)
    ]
    if versions[0] != versions[1]:
        lines.insert(0, f"  plan version: {versions[0]} in the state, {versions[1]} here")
    if not lines:
        return None
    if was == {**now, _BUCKETS: was[_BUCKETS]} and versions[0] == versions[1]:
        lines.append("Some rows of a window that is sorted by length were delivered, in batches of the state's budget.")
    if was[ROW_WEIGHTS] != now[ROW_WEIGHTS]:
        lines.append(_WEIGHTS)
    return "\n".join(
        [
            "the state was taken on different data or options:",
            *lines,
            "Give the loader the data and options of the state, or start the epoch again, or load with strict=False, "
            "which applies the number of batches to the current data.",
        ]
    )


def _shown(component: Sequence[str] | None) -> str:
    if component is None or component[0] == digest_of([]):
        return "nothing"
    return f"{component[1].partition(_GREW_FROM)[0]} (digest {component[0]})"


def _growth(name: str, saved: Mapping[str, list[str]], here: Mapping[str, list[str]]) -> str:
    """Of what rows are preprocessed by, which of two has grown from the other."""
    if name != _PREPROCESS or name not in saved or name not in here:
        return ""
    (was, _, before_was), (now, _, before_now) = (data[name][1].partition(_GREW_FROM) for data in (saved, here))
    if _grew(was, now, before_now):
        return "; the one here grew from that of the state"
    return "; that of the state grew from the one here" if _grew(now, was, before_was) else ""


def _grew(marks: str, others: str, before: str) -> bool:
    """Whether the other marks grew from these: each is the same, or was this one before."""
    pairs = zip_longest(marks.replace(",", "").split(), others.replace(",", "").split())
    return all(one == other or one in before.split() for one, other in pairs)


def _relative(paths: Sequence[tuple[int, str]]) -> list[str]:
    """The paths of each dataset's files below their common directory, without the query of a URL."""
    shared: dict[int, list[str]] = {}
    parts = [(part, _unsigned(path, path).split("/")) for part, path in paths]
    for part, names in parts:
        kept = shared.setdefault(part, names[:-1])
        same = next((i for i, (a, b) in enumerate(zip(kept, names[:-1], strict=False)) if a != b), None)
        shared[part] = kept[: min(len(kept), len(names) - 1) if same is None else same]
    return [f"{part} {'/'.join(names[len(shared[part]) :])}" for part, names in parts]


def _unsigned(name: str, path: str) -> str:
    """A file's name, without the query if its path is a URL: another signature is the same file."""
    return name.split("?")[0] if "://" in path else name


_OF_EACH_RANK = ("plan_version", "epoch", "links", "skip")  # the keys whose values may differ between ranks

_LOG = logging.getLogger("torch_dataloader_utils")


class StateCodec:
    """Writes and reads the states of one dataset.

    Args:
        source: what is read.
        options: of the loader.
        planner: knows the ranks.
        worker: (index, count) in a worker of a foreign loader, where each worker is one shard.
    """

    def __init__(
        self, source: Source, options: Options, planner: Planner, worker: tuple[int, int] | None = None
    ) -> None:
        self._source = source
        self._options = options
        self._planner = planner
        self._worker = worker

    def state(self, position: EpochPosition) -> dict[str, Any]:
        """The position as plain data."""
        rank = self._planner.world.rank
        state: dict[str, Any] = json.loads(self._head)
        batches: int | tuple[int | None, ...] = position.taken
        if position.ranks:
            began = position.ranks[rank]
            further = 0 if began is None else position.taken - began
            batches = tuple(None if count is None else count + further for count in position.ranks)
        link = link_of(Phase(self._saved_options, batches, {} if position.cursor is None else {rank: position.cursor}))
        if self._chosen is not None and not position.past:
            link["policy"] = self._chosen
        state["epoch"] = position.epoch
        state["links"] = (*map(link_of, position.past), link)
        state["plan_version"] = self._plan_version(state)
        state["skip"] = [list(steps) for steps in position.skip]
        if self._worker is not None:
            state["worker"] = self._worker[0]
        elif not self._exact:
            state[f"{OF_RANK}{rank}"] = sealed({name: state[name] for name in _OF_EACH_RANK})
        return sealed(state)

    def position(self, state: Any, *, strict: bool = True) -> EpochPosition:
        """The position recorded in a state.

        Raises:
            CheckpointMismatchError: it is no state of this package, or belongs to other data, or cannot be resumed
                here.
        """
        state = plain(state)
        check_form(state)
        try:
            return self._position(of_rank(state, self._planner.world.rank), strict=strict)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataLoaderUtilsError):
                raise
            raise CheckpointMismatchError(
                f"the state is damaged ({type(error).__name__}: {error}): expected the result of loader.state_dict()."
            ) from error

    def _position(self, state: Mapping[str, Any], *, strict: bool) -> EpochPosition:
        check_reader(state, None if self._worker is None else self._worker[0], self._saved_options)
        versions = (state["plan_version"], self._plan_version(state))
        here = json.loads(self._head)["data"]
        mismatch = different_data(state["data"], here, versions, between_windows=is_between_windows(state))
        if mismatch and strict:
            raise CheckpointMismatchError(mismatch)
        if mismatch:
            _LOG.warning(
                "%s strict=False: the counts are applied to the new plan; rows may repeat or be missed.", mismatch
            )
        check_seal(state)
        *past, last = map(phase_of, state["links"])
        if self._options.features.mixes_rows and (state["epoch"] or past or last.begun):
            here_now = self._plan_options, self._planner.world.num_ranks
            self._options.features.check_phase(last.shape(self._plan_options), here_now)
        skip = tuple((int(first), int(last)) for first, last in state.get("skip", ()))
        position = EpochPosition(int(state["epoch"]), skip=skip)
        if dict(last.options) == self._saved_options and self._counts_as_here(state):
            return self._continued(replace(position, past=tuple(past)), last, keeps_cursor=not mismatch)
        return self._in_new_phase(replace(position, past=(*past, last) if last.begun else tuple(past)))

    def _continued(self, position: EpochPosition, last: Phase, *, keeps_cursor: bool) -> EpochPosition:
        """The position within a phase of the same options; `position` is where the phase begins."""
        self._check_cursors(position.past)
        rank = self._planner.world.rank
        taken = last.of_rank(rank)
        cursor = last.cursors.get(rank) if keeps_cursor else None
        if taken is None:
            if not self._exact:
                cursor = RankCursor(0, (END,) * self._plan_options.num_shards)
            steps = self._planner.rank_plan(position.epoch, rank, past=position.past).steps
            taken = max(0, (steps or 0) - (position.before if self._plan_options.steps_per_epoch else 0))
        ranks = () if isinstance(last.batches, int) else last.batches
        return replace(position, taken=taken, cursor=cursor, ranks=ranks)

    def _in_new_phase(self, position: EpochPosition) -> EpochPosition:
        """The beginning of a phase under the current options."""
        if position.past:
            check_shareable(position.past[-1].options, self._saved_options)
        self._check_cursors(position.past)
        return position

    def _check_cursors(self, past: Sequence[Phase]) -> None:
        if not self._exact:
            check_cursors(past, self._saved_options)

    def _counts_as_here(self, state: Mapping[str, Any]) -> bool:
        """Whether the state counts batches like this loader: per rank, or per worker of a foreign loader."""
        return self._worker is None or self._worker[1] == 1 or "worker" in state

    @cached_property
    def _plan_options(self) -> PlanOptions:
        """The options that shape this loader's plans."""
        return plan_options(self._options, None if self._worker is None else self._worker[1])

    @cached_property
    def _exact(self) -> bool:
        """Whether row counts are known, so that a number of batches determines a rank's progress."""
        return counts_are_known(self._source)

    @cached_property
    def _saved_options(self) -> dict[str, Any]:
        """The options that shape the order, besides the data, as plain values."""
        options, ranks = self._plan_options, self._planner.world.num_ranks
        plain = plain_options(options, ranks, self._options.features)
        strategy = self._options.split.split_strategy
        if hasattr(strategy, "generate"):
            plain["strategy"] = f"{type(strategy).__module__}.{type(strategy).__qualname__}"
        if options.canonical_ranks is not None:
            plain["global_batch"] = options.batch_rows(ranks) * ranks
            for name in ("num_ranks", "num_shards", "batch_size"):
                del plain[name]
        return plain

    @cached_property
    def _chosen(self) -> str | None:
        """The policy that `sharding="auto"` chose."""
        options = self._plan_options
        if options.sharding != "auto":
            return None
        splits = self._source.splits
        return str(resolve_auto(options, self._planner.world.num_ranks, len(splits), splits.uncounted is None))

    @cached_property
    def _head(self) -> str:
        return json.dumps(
            {"version": VERSION, "plan_version": PLAN_VERSION, "data": fingerprint(self._source, self._options)}
        )

    def _plan_version(self, state: Mapping[str, Any]) -> int:
        """The version of a state here: plans of mixes, and of what earlier phases left, have versions of their own."""
        if self._options.features.mixes_rows:
            return MIX_VERSION
        return PLAN_VERSION if len(state["links"]) == 1 else REST_VERSION
