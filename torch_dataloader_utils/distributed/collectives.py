"""The collectives of this package: they end within a limit, and their errors say which ranks are missing."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torch_dataloader_utils.distributed.meeting import Board, expect_failure, meet
from torch_dataloader_utils.distributed.peers import Peers
from torch_dataloader_utils.distributed.ranks import initialized_distributed
from torch_dataloader_utils.distributed.records import DONE, LATE, Step
from torch_dataloader_utils.errors import PlanMismatchError
from torch_dataloader_utils.printing import listed

_LEAST, _MOST = 5e-5, 0.005  # seconds between two looks whether a collective has ended


def gathered_numbers(numbers: list[int], peers: Peers, board: Board) -> list[Any]:
    """The numbers of all peers, in the order of `members`."""
    with _taking_part(board) as wait:
        rows = torch.tensor([numbers], dtype=torch.int64)
        for group in reversed(peers.groups):
            rows = torch.cat(_gathered(rows, group, wait))
    return list(rows.tolist())


def gathered_objects(part: object, peers: Peers, step: Step) -> list[Any]:
    """The objects of all peers, in the order of `members`, once they are about to take the same step."""
    objects: list[Any] = [part]
    with _taking_part(meet(peers, step)) as wait:
        for group in reversed(peers.groups):
            data = _packed(objects)
            sizes = torch.cat(_gathered(torch.tensor([len(data)]), group, wait)).tolist()
            padded = torch.zeros(max(sizes), dtype=torch.uint8)
            padded[: len(data)] = data
            parts = _gathered(padded, group, wait)
            objects = [item for part, size in zip(parts, sizes, strict=True) for item in _unpacked(part[:size])]
    return objects


def swapped_objects(parts: Sequence[object], peers: Peers, step: Step) -> list[Any]:
    """What all peers have for this process, in the order of `members`, once they are about to take the same step.

    Args:
        parts: what this process has for each peer.
        peers: the processes.
        step: as for all of them.
    """
    own = peers.members.index(initialized_distributed().get_rank())
    held: list[tuple[int, int, Any]] = [(own, to, part) for to, part in enumerate(parts)]  # from, to, what
    with _taking_part(meet(peers, step)) as wait:
        # Along one dimension of the mesh after another: each brings everything to the right coordinate in it.
        below = len(peers.members)
        for group in peers.groups:
            size = initialized_distributed().get_world_size(group)
            below //= size
            bundles = [_packed([item for item in held if item[1] // below % size == at]) for at in range(size)]
            held = [item for bundle in _swapped(bundles, group, wait) for item in _unpacked(bundle)]
    return [what for _, _, what in sorted(held, key=lambda item: item[0])]


def sent_by_first(value: object, peers: Peers, step: Step) -> Any:
    """The first peer's object, on all, once they are about to take the same step."""
    dist, data = initialized_distributed(), _packed(value)
    with _taking_part(meet(peers, step)) as wait:
        # The first of each group along one dimension; then along the next, from those that already have it.
        for group in peers.groups:
            first, device = dist.get_global_rank(group, 0), _device(dist, group)
            size = torch.tensor([len(data)], device=device)
            wait(dist.broadcast(size, src=first, group=group, async_op=True))
            sent = data.to(device) if dist.get_rank() == first else torch.empty(int(size), device=device).byte()
            wait(dist.broadcast(sent, src=first, group=group, async_op=True))
            data = sent.cpu()
    return _unpacked(data)


def smallest(peers: Peers, step: Step) -> Callable[[int], int]:
    """A function that returns the smallest of all peers' numbers: an all_reduce(MIN).

    A negative one says that its process cannot go on: all of them raise an error then.
    """
    dist = initialized_distributed()

    def agree(own_number: int) -> int:
        least = torch.tensor([own_number], dtype=torch.int64)
        with _taking_part(Board(peers.members, step)) as wait:
            for group in peers.groups:
                least = least.to(_device(dist, group))
                wait(dist.all_reduce(least, op=dist.ReduceOp.MIN, group=group, async_op=True))
        if least.item() < 0:
            expect_failure(peers.members)
        return int(least.item())

    return agree


@contextmanager
def _taking_part(board: Board) -> Iterator[Callable[[Any], None]]:
    """A function that waits for an operation of this step; errors of the process group get a note."""
    # Polled, so that the limit holds whatever the timeout of the process group is.
    limit = board.step.limit
    deadline = time.monotonic() + limit

    def wait(work: Any) -> None:
        pause = _LEAST
        while not work.is_completed():
            if limit and time.monotonic() > deadline:
                raise PlanMismatchError(board.silence())
            time.sleep(pause)
            pause = min(2 * pause, _MOST)
        work.wait()

    try:
        yield wait
        board.record(DONE)
    except PlanMismatchError:
        raise
    except RuntimeError as error:  # of gloo, NCCL or the store
        error.add_note(_note(board))
        raise


def _note(board: Board) -> str:
    try:
        board.record(LATE)  # this process lives
        missing = listed(board.absent()) or "none"
    except RuntimeError as error:
        missing = f"unknown ({error})"
    return (
        f"raised as the ranks of torch_dataloader_utils were about to {board.step.does}. Process(es) that had not "
        f"arrived: {missing}. See their own output for the first error (a process without any was killed, such as for "
        "its memory), then restart the job from its last checkpoint."
    )


def _gathered(tensor: torch.Tensor, group: Any, wait: Callable[[Any], None]) -> list[torch.Tensor]:
    """The tensors of the members of a group, which have the same shape."""
    dist = initialized_distributed()
    tensor = tensor.to(_device(dist, group))
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    wait(dist.all_gather(parts, tensor, group=group, async_op=True))
    return [part.cpu() for part in parts]


def _swapped(parts: Sequence[torch.Tensor], group: Any, wait: Callable[[Any], None]) -> list[torch.Tensor]:
    """The bytes that the members of a group have for this process; `parts` are those for each of them."""
    dist = initialized_distributed()
    own = [len(part) for part in parts]
    table = torch.stack(_gathered(torch.tensor(own), group, wait))
    others = table[:, dist.get_rank(group)].tolist()
    data = torch.cat(list(parts)).to(_device(dist, group))
    got = torch.empty(sum(others), dtype=torch.uint8, device=data.device)
    wait(dist.all_to_all_single(got, data, others, own, group=group, async_op=True))
    return list(torch.split(got.cpu(), others))


def _packed(value: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpacked(data: torch.Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())


def _device(dist: Any, group: Any) -> torch.device:
    """The device for tensors of the group's collectives."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
