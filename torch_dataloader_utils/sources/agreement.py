"""The options that must be the same on all ranks, and the ranks that share work."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch_dataloader_utils.distributed.exchange import Sharers, sharers_among
from torch_dataloader_utils.distributed.peers import Peers, peers_or_job
from torch_dataloader_utils.distributed.records import Step
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.options.ranks import RankOptions
from torch_dataloader_utils.options.strings import codes_in
from torch_dataloader_utils.reading.row_count_scan import Sharing
from torch_dataloader_utils.values import Value

_PLAIN = (int, float, str, type(None), dict, list, tuple, Value)


def shares_work(options: Options) -> bool:
    """Whether ranks may share the work of creating a loader."""
    return asks_scan(options) or options.read.manifest is not None or options.read.on_error == "skip"


def sharing_of(sharers: Sharers, does: str, work: str = Sharing.work) -> Sharing:
    """How these ranks share work on files.

    Args:
        sharers: the ranks.
        does: what they do when it is done, in words.
        work: what it is, in words.
    """
    if sharers.peers is None:
        return Sharing()
    return Sharing(sharers.index, len(sharers.peers.members), sharers.exchange(does), work)


def asks_scan(options: Options) -> bool:
    """Whether the options may require a scan of the data."""
    asks_windows = options.sequence.sequences is not None
    return options.shard.count_rows or asks_windows or _asks_codes(options) or options.subset.counts_labels


def _asks_codes(options: Options) -> bool:
    return bool(codes_in(options.convert.strings))


def sharers_of(options: Options) -> Sharers:
    """The ranks that share the work of creating a loader."""
    return sharers_among(options.shard.num_ranks, options.shard.peers, options.worker.timeout, _decisive(options))


def joint_step(options: Options, does: str) -> tuple[Peers, Step]:
    """The ranks of a loader, and a step that they take together."""
    step = Step(does, options.worker.timeout, _decisive(options), _named(options))
    return peers_or_job(options.shard.peers), step


def _decisive(options: Options) -> dict[str, str]:
    """The options that decide which collectives there are."""
    from torch_dataloader_utils import __version__  # the root is complete only after this module is loaded

    return {
        "count_rows": str(options.shard.count_rows),
        "on_error": repr(options.read.on_error),
        "manifest": "None" if options.read.manifest is None else "a file",
        "follow": str(options.follow.follows),
        "class_weights": "'balanced'" if options.subset.counts_labels else "not 'balanced'",
        "sequences": "None" if options.sequence.sequences is None else "windows",
        "strings": "'codes'" if _asks_codes(options) else "without 'codes'",
        "the version of torch_dataloader_utils": __version__,
    }


def _named(options: Options) -> dict[str, str]:
    """The options that shape the plan, as text."""
    shard, batch, worker = options.shard, options.batch, options.worker
    ranks = {item.name for item in fields(RankOptions)}
    values = {item.name: getattr(shard, item.name) for item in fields(shard) if item.name not in ranks}
    values |= {item.name: getattr(options.shuffle, item.name) for item in fields(options.shuffle)}
    values |= {item.name: getattr(options.subset, item.name) for item in fields(options.subset)}
    values |= {"batch_size": batch.batch_size, "last_batch": batch.last_batch, "num_workers": worker.num_shards}
    values |= {name: getattr(options.split, name) for name in ("split_bytes", "split_rows", "split_strategy")}
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    """The value as text that is the same in all processes: the repr of an object may hold its address."""
    return repr(value) if isinstance(value, _PLAIN) else getattr(value, "__qualname__", type(value).__name__)
