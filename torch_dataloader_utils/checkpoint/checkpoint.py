"""What a loader and its states have to do with each other: writes them, and reads them against what is here."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.checkpoint.state_dict import (
    COUNTS,
    END,
    UNKNOWN,
    VERSION,
    SavedPhase,
    check_form,
    policy_name,
    short,
)
from torch_dataloader_utils.errors import CheckpointMismatchError, DataLoaderUtilsError
from torch_dataloader_utils.model import RankCursor
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planner import Planner, digest, plan_options
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.plan import PLAN_VERSION, REST_VERSION
from torch_dataloader_utils.planning.rest import Phase
from torch_dataloader_utils.planning.sharding import resolve_auto
from torch_dataloader_utils.schemas.merge import kept_schema
from torch_dataloader_utils.sources.source import Source

_LOG = logging.getLogger("torch_dataloader_utils")

_OF_DATA = ("seed", "shuffle")  # options that are told among the data: no phase may have others


class StateCodec:
    """The states of one dataset: writes them, and reads them.

    Args:
        source: what is read.
        options: of the loader.
        planner: knows the ranks.
        worker: (number, count) in a worker of a foreign loader, where each worker is one shard.
    """

    def __init__(
        self, source: Source, options: Options, planner: Planner, worker: tuple[int, int] | None = None
    ) -> None:
        self._source = source
        self._options = options
        self._planner = planner
        self._worker = worker

    def state(self, place: EpochPosition) -> dict[str, Any]:
        """The place as plain data."""
        rank = self._planner.world.rank
        state: dict[str, Any] = json.loads(self._head)
        batches: int | tuple[int | None, ...] = place.taken
        if place.ranks:
            own = place.ranks[rank]
            further = 0 if own is None else place.taken - own
            batches = tuple(None if count is None else count + further for count in place.ranks)
        link = SavedPhase(self._own, batches, {} if place.cursor is None else {rank: place.cursor}).plain()
        if self._chosen is not None and not place.past:
            link["policy"] = self._chosen
        state["epoch"] = place.epoch
        state["links"] = [*(past.plain() for past in place.past), link]
        state["plan_version"] = _plan_version(state)
        state["skip"] = [list(steps) for steps in place.skip]
        if self._worker is not None:
            state["worker"] = self._worker[0]
        return state

    def place(self, state: Any, *, strict: bool = True) -> EpochPosition:
        """The place that a state says.

        Raises:
            CheckpointMismatchError: it is no state of this package, or of other data, or cannot be continued here.
        """
        check_form(state)
        try:
            return self._place(state, strict=strict)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataLoaderUtilsError):
                raise
            raise CheckpointMismatchError(
                f"the state is damaged ({type(error).__name__}: {error}): expected what loader.state_dict() returned."
            ) from error

    def _place(self, state: Mapping[str, Any], *, strict: bool) -> EpochPosition:
        self._check_worker(state)
        mismatch = self._mismatch(state)
        if mismatch and strict:
            raise CheckpointMismatchError(mismatch)
        if mismatch:
            _LOG.warning(
                "%s strict=False: the counts are applied to the new plan; rows may repeat or be missed.", mismatch
            )
        links = [SavedPhase.of(link) for link in state["links"]]
        place = EpochPosition(
            int(state["epoch"]), skip=tuple((int(first), int(last)) for first, last in state.get("skip", ()))
        )
        if dict(links[-1].options) == self._own and self._one_reader(state):
            return self._continued(place, links, keeps_cursor=not mismatch)
        return self._dealt_again(place, [*links[:-1], *([links[-1]] if links[-1].begun else [])])

    def phases(self, past: Sequence[SavedPhase]) -> tuple[Phase, ...]:
        """Earlier links as planning takes them."""
        return tuple(link.phase(self.plan_options) for link in past)

    @cached_property
    def plan_options(self) -> PlanOptions:
        """What shapes this loader's plans."""
        return plan_options(self._options, None if self._worker is None else self._worker[1])

    def _continued(self, place: EpochPosition, links: list[SavedPhase], *, keeps_cursor: bool) -> EpochPosition:
        """The place behind a link of the same options."""
        *past, last = links
        self._check_past(past)
        rank = self._planner.world.rank
        place = _behind(place, past)
        taken = last.of_rank(rank)
        cursor = last.cursors.get(rank) if keeps_cursor else None
        if taken is None:
            if not self._exact:
                cursor = RankCursor(0, (END,) * self.plan_options.num_shards)
            steps = self._planner.rank_plan(place.epoch, rank, past=self.phases(past)).steps
            taken = max(0, (steps or 0) - (place.before if self.plan_options.steps_per_epoch else 0))
        ranks = () if isinstance(last.batches, int) else last.batches
        return replace(place, taken=taken, cursor=cursor, ranks=ranks)

    def _dealt_again(self, place: EpochPosition, past: list[SavedPhase]) -> EpochPosition:
        """The beginning of a new phase behind these."""
        if past and "strategy" in {**past[-1].options, **self._own}:
            raise CheckpointMismatchError(
                f"a strategy with generate() decides itself who reads what, so its states are continued under the same "
                f"options only. The state has {_difference(past[-1].options, self._own)}."
            )
        if past and past[-1].options.get("canonical_ranks") != self._own.get("canonical_ranks"):
            raise CheckpointMismatchError(
                "canonical_ranks makes an order that does not depend on the ranks, and is continued with the same one "
                f"only. The state has {_difference(past[-1].options, self._own)}."
            )
        if past and self._own.get("canonical_ranks"):
            raise CheckpointMismatchError(
                "with canonical_ranks the global batch (num_ranks x batch_size) and what else shapes the order must "
                f"stay. The state has {_difference(past[-1].options, self._own)}."
            )
        self._check_past(past)
        return _behind(place, past)

    def _one_reader(self, state: Mapping[str, Any]) -> bool:
        """Whether this state's batches are counted as they are here: those of a rank are no worker's."""
        return self._worker is None or self._worker[1] == 1 or "worker" in state

    def _check_past(self, past: Sequence[SavedPhase]) -> None:
        """Check that it is known how far each rank came."""
        if self._exact:
            return
        for link in past:
            self._check_finished(link)
            missing = [rank for rank in range(link.options["num_ranks"]) if rank not in link.cursors]
            if missing and link.begun:
                raise CheckpointMismatchError(
                    "only reading tells how many rows there are, and the state does not say how far the rank(s) "
                    f"{', '.join(map(str, missing))} came: it can be continued by the same kind of loader with the "
                    f"same options only ({_difference(link.options, self._own)}). Save "
                    "loader.state_dict(all_ranks=True), or join the states of all ranks with merge_state_dicts([...])."
                )

    def _check_finished(self, link: SavedPhase) -> None:
        """Check that no rank ended with rows left out, of which nobody knows how many there are."""
        leaves_out = {"last_batch": "drop", "even": "sync"}
        told = [f"{name}={value!r}" for name, value in leaves_out.items() if link.options.get(name) == value]
        if link.options.get("steps_per_epoch") is not None:
            told.append(f"steps_per_epoch={link.options['steps_per_epoch']}")
        ended = [rank for rank, cursor in link.cursors.items() if cursor is not None and END in cursor.shards]
        if told and ended:
            raise CheckpointMismatchError(
                f"rank(s) {', '.join(map(str, ended))} had finished the epoch when the states were taken, and left "
                f"rows out ({', '.join(told)}); where only reading tells how many rows there are, the state does not "
                "say which. Continue with the same options, or from states that were taken before any rank finished."
            )

    def _check_worker(self, state: Mapping[str, Any]) -> None:
        said, own = state.get("worker"), None if self._worker is None else self._worker[0]
        if said is None and own is None:
            return
        if said is None and self._worker is not None and not state.get("skip"):
            return  # a state of our own loader: its rest is dealt to the workers
        same = said == own and dict(state["links"][-1]["options"]) == self._own
        if not same:
            of = "this package's loader" if said is None else f"worker {said} of a foreign loader"
            here = "this package's loader" if own is None else f"worker {own} of a foreign loader"
            raise CheckpointMismatchError(
                f"the state is of {of}, and was loaded into {here}; it has "
                f"{_difference(state['links'][-1]['options'], self._own)}. A worker's state is continued by the same "
                "worker under the same options only, and steps cannot be left out there."
            )

    @cached_property
    def _exact(self) -> bool:
        """Whether row counts are known, so that numbers of batches say how far a rank came."""
        return counts_are_known(self._source)

    @cached_property
    def _own(self) -> dict[str, Any]:
        """What shapes the order besides the data, as plain values."""
        options, ranks = self.plan_options, self._planner.world.num_ranks
        own = {item.name: getattr(options, item.name) for item in fields(options) if item.name not in _OF_DATA}
        own |= {"sharding": policy_name(options.sharding), "num_ranks": ranks}
        strategy = self._options.split.split_strategy
        if hasattr(strategy, "generate"):
            own["strategy"] = f"{type(strategy).__module__}.{type(strategy).__qualname__}"
        if options.canonical_ranks is not None:
            own["global_batch"] = options.batch_rows(ranks) * ranks
            for name in ("num_ranks", "num_shards", "batch_size"):
                del own[name]
        return own

    @cached_property
    def _chosen(self) -> str | None:
        """What `sharding="auto"` chose."""
        options = self.plan_options
        if options.sharding != "auto":
            return None
        splits = self._source.splits
        counted = all(split.row_count is not None for split in splits)
        return str(resolve_auto(options, self._planner.world.num_ranks, len(splits), counted))

    @cached_property
    def _head(self) -> str:
        return json.dumps(
            {"version": VERSION, "plan_version": PLAN_VERSION, "data": fingerprint(self._source, self._options)}
        )

    def _mismatch(self, state: Mapping[str, Any]) -> str | None:
        """What this state says of its data that is not so here; None where all is the same."""
        here = json.loads(self._head)
        lines = []
        version = _plan_version(state)
        if state["plan_version"] != version:
            lines.append(f"  plan version: {state['plan_version']} in the state, {version} here")
        for name in [*here["data"], *(name for name in state["data"] if name not in here["data"])]:
            said, own = state["data"].get(name), here["data"].get(name)
            if said != own:
                lines.append(f"  {name}: {_shown(said)} in the state, {_shown(own)} here")
        if not lines:
            return None
        return "\n".join(
            [
                "the state was taken on other data than this loader has:",
                *lines,
                "Give the loader the data and options that the state was taken with; or begin the epoch anew; or load "
                "with strict=False, which applies the number of batches to what is here.",
            ]
        )


def _plan_version(state: Mapping[str, Any]) -> int:
    """The version that a state has here: plans of what earlier phases left have their own."""
    return PLAN_VERSION if len(state["links"]) == 1 else REST_VERSION


def _behind(place: EpochPosition, past: Sequence[SavedPhase]) -> EpochPosition:
    return replace(place, past=tuple(past), before=sum(link.steps for link in past))


def _shown(component: Any) -> str:
    return "nothing" if component is None else f"{component[1]} (digest {component[0]})"


def _difference(said: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The options that differ, both sides."""
    names = [name for name in {**said, **own} if said.get(name) != own.get(name)]
    theirs = ", ".join(f"{name}={said.get(name)!r}" for name in names)
    ours = ", ".join(f"{name}={own.get(name)!r}" for name in names)
    return f"{theirs}; here it is {ours}" if names else "the same options as here"


def counts_are_known(source: Source) -> bool:
    """Whether the rows that each split delivers are known without reading."""
    return source.exact and all(split.row_count is not None for split in source.splits)


def fingerprint(source: Source, options: Options) -> dict[str, list[str]]:
    """Of each component of what is read: a digest and a short text, neither of which holds a secret."""
    files, splits, scan = source.files, source.splits, source.scan
    rows = sum(file.info.record_count or 0 for file in files)
    names = _relative([(file.info.part, file.info.path) for file in files])
    named = [f"{name} {file.info.file_size} {file.info.record_count}" for name, file in zip(names, files, strict=True)]
    schema = [f"{item.name}: {item.type}" for item in kept_schema(scan.output_schema)]
    predicate = str(scan.predicate)
    nulls = options.convert.nulls
    nulls = dict(sorted(nulls.items())) if isinstance(nulls, Mapping) else nulls
    order = options.shuffle
    known = "known" if counts_are_known(source) else UNKNOWN
    found: dict[str, tuple[Sequence[str], str]] = {
        "files": (named, f"{len(files)} files, {rows} rows"),
        "schema": (schema, f"{len(schema)} columns: {short(', '.join(schema))}"),
        "filters": ([predicate], short(predicate)),
        "nulls": ([str(nulls)], short(str(nulls))),
        "origin": ([source.origin], short(source.origin) or "files"),
        "mixing": ([str(source.parts)], f"{len(source.parts)} dataset(s)"),
        "splits": (
            [f"{split.file.part} {split.row_range} {split.segments}" for split in splits],
            f"{len(splits)} splits",
        ),
        "shuffle": ([str(order.shuffle)], str(order.shuffle)),
        "shuffle_seed": ([str(order.shuffle_seed)], str(order.shuffle_seed)),
        COUNTS: ([known], known),
    }
    return {name: [f"{digest(parts):016x}", text] for name, (parts, text) in found.items()}


def _relative(paths: Sequence[tuple[int, str]]) -> list[str]:
    """The paths of each dataset's files below the directory that they share; nothing of a URL's query."""
    shared: dict[int, list[str]] = {}
    parts = [(part, path.split("?")[0].split("/") if "://" in path else path.split("/")) for part, path in paths]
    for part, names in parts:
        kept = shared.setdefault(part, names[:-1])
        same = next((i for i, (a, b) in enumerate(zip(kept, names[:-1], strict=False)) if a != b), None)
        shared[part] = kept[: min(len(kept), len(names) - 1) if same is None else same]
    return [f"{part} {'/'.join(names[len(shared[part]) :])}" for part, names in parts]
