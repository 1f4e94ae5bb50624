"""Issues credentials to worker processes, on a thread of the process that can ask for them."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext

from torch_dataloader_utils.errors import CatalogError, DataLoaderUtilsError
from torch_dataloader_utils.storage.renewal import Issued, Renewal, issuer

_LOG = logging.getLogger("torch_dataloader_utils")
_PAUSE = 0.2  # seconds between tries to renew credentials early, at least


class RenewalDesk:
    """The pipes of some worker processes, and the thread that answers on them.

    Not the thread that takes batches: a training step may take minutes. It ends with the processes, and it refers to
    no `Renewal` while it waits, because the user's objects can be reached from one.
    """

    def __init__(self) -> None:
        self.ends: list[Connection] = []

    def line(self, context: BaseContext) -> Connection:
        """A worker process's end of a new pipe."""
        ours, theirs = context.Pipe()
        self.ends.append(ours)
        return theirs

    def open(self) -> None:
        """Start to answer."""
        threading.Thread(target=_Answers(self.ends).run, name="tdu-credentials", daemon=True).start()

    def close(self) -> None:
        """Close the pipes, if nobody answers yet."""
        for end in self.ends:
            end.close()


class _Answers:
    """The thread's work.

    Args:
        ends: this process's ends of the pipes.
    """

    def __init__(self, ends: list[Connection]) -> None:
        self._ends = list(ends)
        self._held: dict[tuple[Connection, str], int] = {}  # the number of the credentials that a process has
        self._sent: dict[tuple[Connection, str], int] = {}  # and of those that were last sent to it

    def run(self) -> None:
        """Answer until all processes have ended."""
        try:
            while self._ends:
                for end in wait(self._ends, self._pause()):
                    assert isinstance(end, Connection)
                    self._take(end)
                self._send_new()
        finally:
            for end in self._ends:
                end.close()  # nobody waits for an answer that does not come

    def _take(self, end: Connection) -> None:
        """Take in a message, and answer it."""
        try:
            word, key, number = end.recv()
        except (EOFError, OSError):
            self._leave(end)
            return
        self._held[end, key] = number
        if word == "renew":
            self._answer(end, key, number)

    def _pause(self) -> float | None:
        """Seconds until credentials are to be renewed; None if it is not known that any end."""
        times = [renewal.renew_at for key in self._keys() if (renewal := _lasting(key)) is not None]
        due = min((when for when in times if when is not None), default=None)
        return None if due is None else max(_PAUSE, due - time.time())

    def _keys(self) -> set[str]:
        return {key for _, key in self._held}

    def _answer(self, end: Connection, key: str, number: int) -> None:
        renewal = issuer(key)
        try:
            if renewal is None:
                raise CatalogError("the loader that asks the catalog for credentials has gone.")
            self._send(end, key, renewal.after(number))
        except Exception as error:  # noqa: BLE001 - raised again in the process that asks
            self._send(end, key, _sendable(error))

    def _send_new(self) -> None:
        """Send newer credentials to the processes that have taken in what was sent to them before.

        A process that does not read for long, whose pipe would fill up, gets no more than one message.
        """
        for key in self._keys():
            issued = _renewed_early(key)
            for (end, of), held in list(self._held.items()):
                if of == key and issued is not None and self._sent.get((end, of), -1) <= held < issued.number:
                    self._send(end, key, issued)

    def _send(self, end: Connection, key: str, content: Issued[object] | Exception) -> None:
        try:
            end.send((key, content))
        except OSError:
            self._leave(end)
            return
        except Exception as error:  # noqa: BLE001 - of an object that cannot be pickled
            self._send(end, key, _sendable(error))
            return
        if isinstance(content, Issued):
            self._sent[end, key] = content.number

    def _leave(self, end: Connection) -> None:
        """Forget a process that has ended."""
        if end in self._ends:
            self._ends.remove(end)
            end.close()
        for known in (self._held, self._sent):
            for place in [place for place in known if place[0] is end]:
                del known[place]


def _lasting(key: str) -> Renewal[object] | None:
    """The renewal of credentials that have not expired: expired ones are renewed when a process asks."""
    renewal = issuer(key)
    if renewal is None:
        return None
    expires_at = renewal.issued.expires_at
    return None if expires_at is None or expires_at <= time.time() else renewal


def _renewed_early(key: str) -> Issued[object] | None:
    """The latest credentials, which are renewed at half of their lifetime."""
    renewal = _lasting(key)
    if renewal is None:
        known = issuer(key)
        return None if known is None else known.issued
    try:
        return renewal.current()
    except Exception as error:  # noqa: BLE001 - the processes that need them get the error when they ask
        _LOG.warning("credentials could not be renewed: %s", error)
        return renewal.issued


def _sendable(error: Exception) -> Exception:
    """The error, or one that says the same, if it is none of this package or cannot be pickled."""
    if isinstance(error, DataLoaderUtilsError):
        try:
            return type(error)(*pickle.loads(pickle.dumps(error)).args)
        except Exception:  # noqa: BLE001 - whatever its pickle raises
            pass
    return CatalogError(f"{type(error).__name__}: {error}")
