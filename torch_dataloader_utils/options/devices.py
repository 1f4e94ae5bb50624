"""The option that says on which device batches are."""

from __future__ import annotations

import re
import sys
from typing import Any

from torch_dataloader_utils.errors import OptionError, leave_out, use
from torch_dataloader_utils.printing import shown

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
