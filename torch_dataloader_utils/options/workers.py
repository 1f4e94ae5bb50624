"""`worker_mode=`: threads, or processes and how they start; `device=`: where batches are."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError, leave_out, use
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

    persistent: bool = setting(default=True, check=flag, doc="whether workers are kept between epochs", kw_only=False)
    context: Any = setting(
        default=None,
        check=start_method,
        doc="how workers start: a method of multiprocessing or its context; None: forkserver, or spawn if unavailable",
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


_NAMES = re.compile(r"cpu|cuda(:\d+)?")


def device_name(name: str, value: Any) -> str:
    """The name of a device that this process can use: "cpu", "cuda" or "cuda:N".

    Raises:
        OptionError: it is no such device, or this process sees no such GPU.
    """
    # Planning does without torch. Whoever makes a loader has imported it.
    torch: Any = sys.modules.get("torch")
    is_device = torch is not None and isinstance(value, torch.device)
    text = str(value) if is_device else value
    if not isinstance(text, str) or not _NAMES.fullmatch(text):
        raise OptionError(
            f"{name}={shown(value)}: expected 'cpu', 'cuda', 'cuda:N' or a torch.device of these. Move batches to "
            "other devices by .to(device).",
            remedies=[leave_out(name)],
        )
    if text != "cpu" and torch is not None:
        _check_gpu(torch, name, text)
    return text


def _check_gpu(torch: Any, name: str, text: str) -> None:
    if not torch.cuda.is_available():
        found = "was built without CUDA" if torch.version.cuda is None else "finds none"
        raise OptionError(
            f"{name}={text!r} needs a GPU, but torch {torch.__version__} {found}: install a build of torch for the "
            "machine's CUDA driver, or read on the CPU.",
            remedies=[leave_out(name)],
        )
    count, (_, _, number) = torch.cuda.device_count(), text.partition(":")
    if number and int(number) >= count:
        raise OptionError(
            f"{name}={text!r}: this process sees {count} GPU(s), numbered from 0. Pass a lower number.",
            remedies=[use("the current one: torch.cuda.set_device", **{name: "cuda"})],
        )
