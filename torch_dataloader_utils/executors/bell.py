"""What the consumer and the decode threads wait for."""

from __future__ import annotations

import threading


class Bell:
    """Two conditions under one lock.

    The garbage collector may end a driver in any thread, even in one that holds the lock.
    """

    def __init__(self) -> None:
        lock = threading.RLock()
        self.work, self.arrived = threading.Condition(lock), threading.Condition(lock)

    def ring(self) -> None:
        """Wake all waiting threads."""
        with self.work:
            self.work.notify_all()
            self.arrived.notify_all()
