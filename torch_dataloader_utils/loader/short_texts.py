"""Short texts about a dataset: its `repr`, and why the number of its batches is not known."""

from __future__ import annotations

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.iteration.epochs import Epochs
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planner import Planner
from torch_dataloader_utils.planning.advice import unknown_steps_advice
from torch_dataloader_utils.printing import plural


def steps_unknown(options: Options, *, waits: bool) -> str:
    """Why the number of batches of a pass is not known before it is read, and what to do, in sentences.

    Args:
        options: of the loader.
        waits: whether the next pass waits for rows that are appended to a table.
    """
    if waits:
        return (
            "the number of batches is known once the next pass has begun: with follow=True, it reads what is appended "
            "until then. Call len() after its first batch."
        )
    if options.shard.even == "sync" and not options.uncounted:
        return (
            "the number of batches is known only after reading, because even='sync' ends all ranks with the first one. "
            "Set even='drop' or even='pad', or steps_per_epoch=n to fix the number."
        )
    # A pass that follows a table reads each row once, so no option can fix its steps.
    return str(unknown_steps_advice(options.uncounted, fixable=not options.follow.follow))


def summary(here: Epochs, options: Options, *, waits: bool) -> str:
    """What is read, and how, in one line. It detects nothing for this and never raises.

    Args:
        here: the epochs of this process.
        options: of the loader.
        waits: whether the next pass waits for rows that are appended to a table.
    """
    parts = [here.source.size, f"batch_size {options.batch.batch_size:,}"]
    try:
        if here.planner.is_settled:
            parts.append(_place_and_steps(here.planner, here.passes.place, waits))
    except Exception:  # noqa: BLE001 - the user's next call raises the same error
        parts.append("rank unknown")
    return "; ".join(parts)


def _place_and_steps(planner: Planner, place: EpochPosition, waits: bool) -> str:
    ranks = f"rank {planner.world.rank} of {planner.world.num_ranks}"
    # The plan of a resumed epoch takes time, and a custom strategy must not be called for this.
    known = not place.past and not waits and planner.plan_of_all_ranks() is not None
    steps = planner.steps(place.epoch, planner.world.rank) if known else None
    if steps is not None:
        return f"{ranks}, {plural(steps, 'step')} in epoch {place.epoch}"
    return f"{ranks}, the next pass follows the table" if waits else ranks
