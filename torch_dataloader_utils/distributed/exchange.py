"""Work that ranks share: each does a part and all get everything, or the first does it and all get the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch_dataloader_utils import errors
from torch_dataloader_utils.distributed.peers import Peers, job_peers
from torch_dataloader_utils.distributed.ranks import initialized_distributed
from torch_dataloader_utils.errors import WorkerError

T = TypeVar("T")


def object_exchange(
    num_ranks: int | None, peers: Peers | None = None
) -> tuple[int, int, Callable[[object], list[Any]] | None]:
    """This process's index among the sharers, their number, and a collective that maps its object to theirs.

    (0, 1, None) if there is nobody to share with: torch.distributed is not initialised, or the loader has other ranks
    than the peers, such as one made with explicit (1, 0).
    """
    sharers = _sharers(num_ranks, peers)
    if sharers is None:
        return 0, 1, None
    dist = initialized_distributed()

    def exchange(part: object) -> list[Any]:
        objects: list[Any] = [part]
        for group in reversed(sharers.groups):
            received: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(received, objects, group=group)
            objects = [item for items in received for item in items]
        return objects

    return sharers.members.index(dist.get_rank()), len(sharers.members), exchange


def from_first_rank(make: Callable[[], T], num_ranks: int | None, peers: Peers | None = None) -> T:
    """The result of `make` on the first rank, on all of them; without peers, its result here.

    A collective: `make` must include everything that can fail, so that no rank waits for one that has failed.

    Raises:
        Exception: `make` failed: its own error on the first rank; on the others one of the same class if that belongs
            to this package, else a WorkerError.
    """
    sharers = _sharers(num_ranks, peers)
    if sharers is None:
        return make()
    if sharers.members[0] != initialized_distributed().get_rank():
        value, failure = _broadcast(sharers, None)
        if failure is not None:
            raise _error_of_first(*failure)
        return value  # type: ignore[no-any-return]  # what the first rank's `make` returned
    try:
        made = make()
    except Exception as error:
        _broadcast(sharers, (None, (type(error).__name__, str(error))))
        raise
    _broadcast(sharers, (made, None))
    return made


def _sharers(num_ranks: int | None, peers: Peers | None) -> Peers | None:
    """The processes to share work with; None if there are none."""
    sharers = peers or job_peers()
    if sharers is None or initialized_distributed() is None or len(sharers.members) < 2:
        return None
    return sharers if num_ranks in (None, sharers.world.num_ranks) else None


def _broadcast(sharers: Peers, value: Any) -> Any:
    """The first process's object, on all."""
    dist, objects = initialized_distributed(), [value]
    # The first of each group along one dimension; then along the next, from those that already have it.
    for group in sharers.groups:
        dist.broadcast_object_list(objects, src=dist.get_global_rank(group, 0), group=group)
    return objects[0]


def _error_of_first(name: str, message: str) -> Exception:
    """An error of the first rank, as the others raise it."""
    kind = getattr(errors, name, None)
    return WorkerError(f"on rank 0: {name}: {message}") if kind is None else kind(f"on rank 0: {message}")
