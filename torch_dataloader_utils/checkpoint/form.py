"""Checks that something is a state as this package writes it: each value's type and size, and a digest of all.

torch.distributed.checkpoint saves each key by itself, from whichever rank has the least to write, and fills the keys of
a new loader's state. So all states of a loader have the same keys, values that may have another shape are in a tuple,
which it does not enter, and where the states of ranks differ, each rank has a key of its own, sealed by itself. (A text
under one key would be simpler, but training loops, and people who look into a checkpoint, read `epoch` and `links`.)

States come from files, and files are damaged. The checks need no plan and no memory: a number of workers that no loader
has is refused before anything is created for each of them.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from operator import index
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.options.mix import MOST_PHASES

VERSION = 1
SEAL = "digest"  # the key of the digest of all others
OF_RANK = "dp_rank_"  # and the number of a rank: what holds for it alone

_MOST = 2**62  # of any number
_RANKS, _SHARDS = 2**17, 2**12  # more than any job has
_LINKS = 2**10
_DEPTH = 20  # of containers in containers; no state has that many
_FRACTION = re.compile(r"[0-9]+(/[1-9][0-9]*)?", re.ASCII)

Check = Callable[[Any], bool]


def check_form(state: Any) -> None:
    """Check that this is a state of a known version.

    Raises:
        CheckpointMismatchError: it is not.
    """
    if isinstance(state, Mapping) and {"epoch", "completed_shards"} <= state.keys():  # as 0.2.0 wrote them
        raise CheckpointMismatchError(
            "this is a state of release 0.2.0, which names finished workers, not rows, and cannot continue: begin "
            f"its epoch anew with dataset.set_epoch({_shown(state['epoch'])})."
        )
    needed = {"version", "plan_version", "data", "epoch", "links"}
    if not isinstance(state, Mapping) or not needed <= state.keys() or not state["links"]:
        given = f"a dict with the keys {sorted(map(str, state))[:20]}" if isinstance(state, Mapping) else _type(state)
        raise CheckpointMismatchError(
            f"expected the result of loader.state_dict() (a dict with {sorted(needed)}), got {given}."
        )
    _check_each(state, {"epoch": _whole()}, "")
    if state["version"] != VERSION:
        raise CheckpointMismatchError(
            f"the state has version {_shown(state['version'])}, but this release reads version {VERSION}: load it with "
            "the release that wrote it."
        )
    _check_each(state, _STATE, "")
    for link in state["links"]:
        _check_each(link, _LINK, "links: ")
        _check_each(link["options"], _OPTIONS, "options: ")
        _check_sizes(link)


def plain(value: Any, depth: int = 0) -> Any:
    """A state as Python's own dicts, lists and numbers, from whatever stores made of them (numpy, OmegaConf)."""
    if isinstance(value, (str, bytes, bool, int, float)) or value is None or depth > _DEPTH:
        return value
    if isinstance(value, Mapping):
        return {plain(key, depth + 1): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (range, memoryview, bytearray)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with the digest of its values."""
    return {**state, SEAL: _digest(state)}


def of_rank(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """The state of one rank, from a state whose keys torch.distributed.checkpoint has gathered from all ranks.

    Raises:
        CheckpointMismatchError: it has no intact position of the rank.
    """
    own = state.get(f"{OF_RANK}{rank}")
    shared = {name: value for name, value in state.items() if not name.startswith(OF_RANK)}
    if own is None or (is_sealed(shared) and str(rank) in shared["links"][-1].get("cursors", {})):
        return shared
    _check_each(own, {}, OF_RANK)
    check_seal(own)
    whole = {**shared, **own}
    check_form(whole)
    if whole["links"][-1]["options"] != shared["links"][-1]["options"]:
        raise CheckpointMismatchError(
            f"the checkpoint does not hold the position of rank {rank}, known only after reading: it was saved "
            f"with num_ranks={shared['links'][-1]['options'].get('num_ranks')}. Save "
            "loader.state_dict(all_ranks=True), which any number of ranks can load."
        )
    return sealed(whole)


def check_seal(state: Mapping[str, Any]) -> None:
    """Check that the state is as it was written.

    Raises:
        CheckpointMismatchError: it is not.
    """
    if not is_sealed(state):
        raise CheckpointMismatchError(
            "the state is damaged: its values do not match their digest. Load an intact copy, or an earlier checkpoint."
        )


def is_sealed(state: Mapping[str, Any]) -> bool:
    """Whether the state is as it was written; true without a digest."""
    seal = state.get(SEAL, "")
    return seal in ("", _digest(state)) or seal == _digest(state, texts=True)  # as states were sealed at first


def _digest(state: Mapping[str, Any], *, texts: bool = False) -> str:
    """The digest of a state without what holds for one rank, nor the texts of its data, which may differ by process."""
    values = {name: value for name, value in state.items() if name != SEAL and not name.startswith(OF_RANK)}
    try:
        if "data" in values and not texts:
            values["data"] = {name: component[0] for name, component in values["data"].items()}
        text = json.dumps(values, sort_keys=True, default=index)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointMismatchError(
            f"the state is damaged ({type(error).__name__}): expected the result of loader.state_dict()."
        ) from None  # its message may be as long as the state
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _check_each(values: Any, checks: Mapping[str, Check], where: str) -> None:
    """Check the values that are in `checks`."""
    if not isinstance(values, Mapping):
        raise _damaged(f"{where}{_shown(values)}")
    for name, check in checks.items():
        if name in values and not check(values[name]):
            raise _damaged(f"{where}{name}={_shown(values[name])}")


def _check_sizes(link: Mapping[str, Any]) -> None:
    """Check that a link has the options that the progress refers to, and that it is that of its ranks and workers."""
    options, batches, cursors = link["options"], link["batches"], link.get("cursors", {})
    absent = _ALWAYS - options.keys() if options.get("canonical_ranks") else (_ALWAYS | _OF_RANKS) - options.keys()
    if absent:
        raise _damaged(f"options: no {', '.join(sorted(absent))}")
    ranks, shards = options.get("num_ranks"), _shards_of(options)
    if isinstance(batches, (list, tuple)) and len(batches) != (ranks or len(batches)):
        raise _damaged(f"links: batches of {len(batches)} ranks, not of {ranks}")
    for rank, cursor in cursors.items():
        if int(rank) >= (ranks or _RANKS):
            raise _damaged(f"links: a cursor of rank {rank} of {ranks}")
        if cursor is not None and (
            len(cursor[1]) not in (1, shards or len(cursor[1])) or cursor[0] >= (shards or _RANKS)
        ):
            raise _damaged(f"links: a cursor of {len(cursor[1])} workers, not of {shards}")


def _shards_of(options: Mapping[str, Any]) -> Any:
    """How many cursors a rank has: one for each worker, or for each dataset of a mix without end."""
    mixing = options.get("mixing") or {}
    return len(mixing["phases"][0][1]) if "unit_tokens" in mixing else options.get("num_shards")


def _damaged(what: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"the state is damaged ({what}): expected the result of loader.state_dict(). Load an earlier checkpoint."
    )


def _whole(least: int = 0, most: int = _MOST) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _word(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 2**12


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _list_of(check: Check, most: int, least: int = 0) -> Check:
    return lambda value: isinstance(value, (list, tuple)) and least <= len(value) <= most and all(map(check, value))


def _steps(value: Any) -> bool:
    return _list_of(_whole(), 2, 2)(value) and value[0] <= value[1]


def _cursor(value: Any) -> bool:
    return (
        _list_of(lambda item: True, 2, 2)(value)
        and _whole()(value[0])
        and _list_of(_list_of(_whole(), 4, 4), _RANKS, 1)(value[1])
    )


def _all(mapping: Any, key: Check, value: Check) -> bool:
    return isinstance(mapping, Mapping) and all(map(key, mapping)) and all(map(value, mapping.values()))


def _rank(key: Any) -> bool:
    return isinstance(key, str) and len(key) < 10 and key.isascii() and key.isdecimal()


def _mixing(value: Any) -> bool:
    if not (isinstance(value, Mapping) and _word(value.get("batches"))):
        return False
    rows, counts = value.get("rows"), _list_of(_whole(), _RANKS, 1)
    if value.get("unit", "step") != "step" or value.get("run", True) is not True:
        return False
    if "phases" not in value:  # as releases wrote it that mixed by other rules
        return counts(rows)
    length = "total" if "steps" not in value else "steps"
    fixed = _whole(1)(value.get(length)) if rows is None else counts(rows)
    if not _whole(1)(value.get("unit_tokens", 1)):
        return False
    return fixed and _list_of(_phase, MOST_PHASES, 1)(value["phases"])


def _phase(value: Any) -> bool:
    """A first row, and the weights from it on as fractions."""
    return (
        _list_of(lambda item: True, 2, 2)(value)
        and _whole()(value[0])
        and _list_of(_fraction, _RANKS, 1)(value[1])
        and any(weight.strip("0/") for weight in value[1])
    )


def _fraction(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 1000 and _FRACTION.fullmatch(value) is not None


_STATE: dict[str, Check] = {
    "plan_version": _whole(),
    "data": lambda value: _all(value, _word, _list_of(lambda text: isinstance(text, str), 2, 2)),
    "links": _list_of(lambda link: isinstance(link, Mapping) and {"options", "batches"} <= link.keys(), _LINKS, 1),
    "skip": _list_of(_steps, 2**20),
    "worker": _maybe(_whole(0, _SHARDS)),
}
_LINK: dict[str, Check] = {
    "batches": lambda value: _whole()(value) or _list_of(_maybe(_whole()), _RANKS, 1)(value),
    "cursors": lambda value: _all(value, _rank, _maybe(_cursor)),
    "policy": _word,
}
_OPTIONS: dict[str, Check] = {
    "num_ranks": _whole(1, _RANKS),
    "num_shards": _whole(1, _SHARDS),
    "canonical_ranks": _maybe(_whole(1, _RANKS)),
    **dict.fromkeys(("batch_size", "global_batch", "sequence_length"), _whole(1)),
    "pack_bytes": _whole(),
    **dict.fromkeys(("buffer_rows", "window_bytes", "steps_per_epoch", "total_shards", "pack_rows"), _maybe(_whole(1))),
    "open_splits": lambda value: value in (None, "all") or _whole(1)(value),
    **dict.fromkeys(
        ("stick_to_shard", "full_rotation", "shard_batches", "split_batches", "levelled", "pack_keyed"), _flag
    ),
    **dict.fromkeys(("assignment", "even", "last_batch", "strategy"), _word),
    "mixing": _mixing,
    "sharding": lambda value: _word(value) or (isinstance(value, Mapping) and _word(value.get("policy"))),
}


_ALWAYS = {"sharding", "steps_per_epoch", "canonical_ranks"}
_OF_RANKS = {"num_ranks", "num_shards", "batch_size"}  # states of canonical_ranks hold for any


def _type(value: object) -> str:
    return type(value).__name__


def _shown(value: object) -> str:
    """The value as a short text; its type where it has none."""
    try:
        return reprlib.repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or deep nesting
        return _type(value)
