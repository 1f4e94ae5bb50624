"""Checks that options of different groups do not exclude each other."""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options.clashes import CLASHES

if TYPE_CHECKING:
    from torch_dataloader_utils.options.keywords import Options

_REACHABLE = "define it at the top level of a module, or leave worker_mode at 'threads'."


def check_together(options: Options) -> None:
    """Check that options of different groups do not exclude each other.

    Raises:
        OptionError: two options exclude each other.
        CountsRequiredError: one needs row counts, and another makes them unknown.
    """
    for clash in CLASHES:
        clash.check(options)
    check_sent(options)


def check_sent(options: Options) -> None:
    """Check that worker processes can receive the functions that run in them.

    Raises:
        OptionError: they could not import the function `transform`.
    """
    transform, worker = options.read.transform, options.worker
    context = worker.multiprocessing_context
    method = context if context is None or isinstance(context, str) else context.get_start_method()
    if transform is None or worker.worker_mode != "processes" or not worker.num_workers or method == "fork":
        return
    try:
        data = bytes(ForkingPickler.dumps(transform))
    except RuntimeError:  # locks and similar objects can only be passed to a process while it starts
        return
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise OptionError(
            f"transform={transform!r} cannot be sent to worker processes ({error}): {_REACHABLE}"
        ) from error
    if b"__main__" in data and not os.path.exists(getattr(sys.modules["__main__"], "__file__", "")):
        raise OptionError(
            f"transform={transform!r} was defined interactively, so worker processes cannot import it: {_REACHABLE}"
        )
