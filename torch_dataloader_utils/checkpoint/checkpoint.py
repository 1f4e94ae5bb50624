"""Writes a loader's state and reads it back."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.checkpoint.checks import check_boundaries, check_cursors, check_reader, check_shareable
from torch_dataloader_utils.checkpoint.fingerprint import counts_are_known, different_data, fingerprint
from torch_dataloader_utils.checkpoint.form import (
    OF_RANK,
    VERSION,
    check_form,
    check_seal,
    of_rank,
    plain,
    sealed,
)
from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.checkpoint.state_dict import is_between_windows, link_of, phase_of
from torch_dataloader_utils.errors import CheckpointMismatchError, DataLoaderUtilsError
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import END, RankCursor
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planner import Planner, plan_options
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.phases import Phase, plain_options
from torch_dataloader_utils.planning.plan import PLAN_VERSION, REST_VERSION
from torch_dataloader_utils.planning.sharding import resolve_auto
from torch_dataloader_utils.sources.source import Source

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

    def state(self, place: EpochPosition) -> dict[str, Any]:
        """The position as plain data."""
        rank = self._planner.world.rank
        state: dict[str, Any] = json.loads(self._head)
        batches: int | tuple[int | None, ...] = place.taken
        if place.ranks:
            began = place.ranks[rank]
            further = 0 if began is None else place.taken - began
            batches = tuple(None if count is None else count + further for count in place.ranks)
        link = link_of(Phase(self._saved_options, batches, {} if place.cursor is None else {rank: place.cursor}))
        if self._chosen is not None and not place.past:
            link["policy"] = self._chosen
        state["epoch"] = place.epoch
        state["links"] = (*map(link_of, place.past), link)
        state["plan_version"] = _plan_version(state)
        state["skip"] = [list(steps) for steps in place.skip]
        if self._worker is not None:
            state["worker"] = self._worker[0]
        elif not self._exact:
            state[f"{OF_RANK}{rank}"] = sealed({name: state[name] for name in _OF_EACH_RANK})
        return sealed(state)

    def place(self, state: Any, *, strict: bool = True) -> EpochPosition:
        """The position recorded in a state.

        Raises:
            CheckpointMismatchError: it is no state of this package, or belongs to other data, or cannot be resumed
                here.
        """
        state = plain(state)
        check_form(state)
        try:
            return self._place(of_rank(state, self._planner.world.rank), strict=strict)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataLoaderUtilsError):
                raise
            raise CheckpointMismatchError(
                f"the state is damaged ({type(error).__name__}: {error}): expected the result of loader.state_dict()."
            ) from error

    def _place(self, state: Mapping[str, Any], *, strict: bool) -> EpochPosition:
        check_reader(state, None if self._worker is None else self._worker[0], self._saved_options)
        versions = (state["plan_version"], _plan_version(state))
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
        if self._plan_options.mixing is not None and (state["epoch"] or past or last.begun):
            check_boundaries(last.shape(self._plan_options), (self._plan_options, self._planner.world.num_ranks))
        skip = tuple((int(first), int(last)) for first, last in state.get("skip", ()))
        place = EpochPosition(int(state["epoch"]), skip=skip)
        if dict(last.options) == self._saved_options and self._counts_as_here(state):
            return self._continued(replace(place, past=tuple(past)), last, keeps_cursor=not mismatch)
        return self._in_new_phase(replace(place, past=(*past, last) if last.begun else tuple(past)))

    def _continued(self, place: EpochPosition, last: Phase, *, keeps_cursor: bool) -> EpochPosition:
        """The position within a phase of the same options; `place` is where the phase begins."""
        self._check_cursors(place.past)
        rank = self._planner.world.rank
        taken = last.of_rank(rank)
        cursor = last.cursors.get(rank) if keeps_cursor else None
        if taken is None:
            if not self._exact:
                cursor = RankCursor(0, (END,) * self._plan_options.num_shards)
            steps = self._planner.rank_plan(place.epoch, rank, past=place.past).steps
            taken = max(0, (steps or 0) - (place.before if self._plan_options.steps_per_epoch else 0))
        ranks = () if isinstance(last.batches, int) else last.batches
        return replace(place, taken=taken, cursor=cursor, ranks=ranks)

    def _in_new_phase(self, place: EpochPosition) -> EpochPosition:
        """The beginning of a phase under the current options."""
        if place.past:
            check_shareable(place.past[-1].options, self._saved_options)
        self._check_cursors(place.past)
        return place

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
        plain = plain_options(options, ranks)
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


def _plan_version(state: Mapping[str, Any]) -> int:
    """The version of a state here: plans of what earlier phases left have a separate one."""
    return PLAN_VERSION if len(state["links"]) == 1 else REST_VERSION
