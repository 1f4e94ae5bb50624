"""`worker_mode=`: threads, or processes and how they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Value, flag, setting, values


def _is_context(value: Any) -> bool:
    return value is None or (hasattr(value, "get_start_method") and hasattr(value, "Process"))


start_method = values(
    "one of 'fork', 'spawn', 'forkserver', or a context of multiprocessing",
    lambda value: value in ("fork", "spawn", "forkserver") if isinstance(value, str) else _is_context(value),
)


class Processes(Value):
    """Workers that are processes, each of which decodes one shard of a rank; `num_workers` is their number.

    Raises:
        OptionError: a field cannot have this value.
    """

    persistent: bool = setting(default=True, check=flag, doc="whether they are kept between epochs", kw_only=False)
    context: Any = setting(
        default=None,
        check=start_method,
        doc="how they start: a method of multiprocessing or its context; None: forkserver, or spawn if unavailable",
    )


WorkerModeLike: TypeAlias = Literal["threads", "processes", "thread", "process"] | Processes | Mapping[str, Any]

_WORDS = {"threads": "threads", "thread": "threads", "processes": "processes", "process": "processes"}


def of_worker_mode(name: str, given: Any) -> dict[str, Any]:
    """What the options of workers hold for a `worker_mode`.

    Raises:
        OptionError: it is none.
    """
    if isinstance(given, (Processes, Mapping)):
        made = Processes.of(given)
        return {
            "worker_mode": "processes",
            "persistent_workers": made.persistent,
            "multiprocessing_context": made.context,
        }
    if not isinstance(given, str) or given not in _WORDS:
        raise OptionError(f"{name}={shown(given)}: expected 'threads', 'processes' or Processes(...).")
    return {"worker_mode": _WORDS[given]}


def worker_mode_of(held: Any) -> str | Processes:
    """The `worker_mode` of which the options of workers hold what `of_worker_mode` returned."""
    made = Processes(held.persistent_workers, context=held.multiprocessing_context)
    return made if held.worker_mode == "processes" and made.given() else str(held.worker_mode)
