"""What rounds of faults have in common: attempts at a pass, and outcomes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SLACK = 15.0  # seconds beyond a timeout: a busy machine is no fault


class RoundError(AssertionError):
    """A round broke a promise."""


def fail_unless(holds: bool, message: str) -> None:
    """Fail the round (`assert` would be rewritten only in test modules)."""
    if not holds:
        raise RoundError(message)


@dataclass(frozen=True)
class Outcome:
    """How a round ended.

    Attributes:
        what: what was done to whom.
        result: "every row", or the name of the error's class.
        waited: the longest wait for a batch or the error, in seconds.
        closing: seconds until the loader was closed, or the processes had gone.
    """

    what: str
    result: str
    waited: float
    closing: float


@dataclass
class Attempt:
    """A pass as its consumer saw it: the ids, the error that ended it, the longest wait for a batch in seconds."""

    ids: list[int] = field(default_factory=list)
    error: BaseException | None = None
    waited: float = 0.0

    @property
    def name(self) -> str:
        """The name of the error's class, or "every row"."""
        return "every row" if self.error is None else type(self.error).__name__

    def check(self, what: str, expected: Sequence[int], errors: tuple[type, ...], timeout: float) -> None:
        """Every row in its order, or the rows before one of these errors, within the timeout."""
        fail_unless(self.error is None or isinstance(self.error, errors), f"{what}: {self.error!r}")
        wanted = list(expected) if self.error is None else list(expected[: len(self.ids)])
        fail_unless(self.ids == wanted, f"{what}: {len(self.ids)} rows, other than the expected {len(wanted)}")
        fail_unless(self.waited < timeout + SLACK, f"{what}: waited {self.waited:.1f} s, timeout={timeout}")


def batches_of(loader: Iterable[Any], after_batch: Callable[[int], None] = lambda taken: None) -> Attempt:
    """Take batches until the end or an error."""
    attempt, taken = Attempt(), 0
    iterator = iter(loader)
    while True:
        began = time.monotonic()
        try:
            batch = next(iterator)
        except StopIteration:
            return attempt
        except Exception as error:  # noqa: BLE001 - the outcome of the round
            # Without its traceback, whose frames would keep the pass alive.
            attempt.error = error.with_traceback(None)
            return attempt
        finally:
            attempt.waited = max(attempt.waited, time.monotonic() - began)
        attempt.ids += batch["id"].tolist()
        taken += 1
        after_batch(taken)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What a table needs of many rounds: how many ended how, and the longest waits in seconds."""
    return {
        "rounds": len(outcomes),
        "results": dict(Counter(outcome.result for outcome in outcomes)),
        "longest wait": round(max(outcome.waited for outcome in outcomes), 2),
        "longest close": round(max(outcome.closing for outcome in outcomes), 2),
    }
