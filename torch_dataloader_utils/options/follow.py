"""The options that let passes follow a growing table."""

from __future__ import annotations

from dataclasses import dataclass

from torch_dataloader_utils.errors import OptionError, leave_out, use
from torch_dataloader_utils.options.checks import Checked, flag, interval, maybe, option, seconds_or_zero


@dataclass(frozen=True, kw_only=True)
class FollowOptions(Checked):
    """Whether each pass reads what was appended to a table since the pass before it."""

    follow: bool = option(False, flag, doc="each pass after the first reads the rows appended since the pass before it")
    poll_seconds: float = option(10, interval, doc="with follow: how often a pass looks for appended rows")
    wait_seconds: float | None = option(
        None, maybe(seconds_or_zero), doc="with follow: a pass that finds no appended rows for so long is empty"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wait_seconds is not None and not self.follow:
            raise OptionError(
                f"wait_seconds={self.wait_seconds} without follow=True.",
                remedies=[use(follow=True), leave_out("wait_seconds")],
            )
