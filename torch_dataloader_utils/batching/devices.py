"""Where batches are delivered to: memory of this machine's processor, or a GPU. All CUDA calls of batching are here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from torch_dataloader_utils.batching.tensors import pinned, pinning
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.options.workers import device_name


class Target(Protocol):
    """Takes copies of tensors, which may still be under way when `send` returns.

    A copy may be used where `wait` was called with a mark set after it was sent.
    """

    def copying(self) -> AbstractContextManager[Any]:
        """A context in which tensors are sent, cut into views and marked."""

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor there; the given one may be written to at once, unless both are the same."""

    def mark(self) -> Any:
        """A mark that is reached once everything sent so far has arrived."""

    def place(self) -> Hashable:
        """Where the calling thread uses tensors at present; what has been waited for holds for one place only."""

    def wait(self, mark: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Order what this place does from now on after the mark, and keep the memory of `tensors` until it has done it.

        Args:
            mark: the mark.
            tensors: what was sent before the mark.
        """


class HostTarget:
    """Tensors in the processor's memory, which are there at once; with it, tests run the rest without a GPU.

    Args:
        put: places a tensor, such as in page-locked memory.
    """

    def __init__(self, put: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.send = put

    def copying(self) -> AbstractContextManager[Any]:
        """A context without effect."""
        return nullcontext()

    def mark(self) -> None:
        """Nothing: there is nothing to wait for."""

    def place(self) -> Hashable:
        """The same for all threads."""
        return None

    def wait(self, mark: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Return at once."""


class CudaTarget:
    """Tensors on a GPU, copied from page-locked memory on a stream of their own.

    torch keeps the page-locked memory until the copy has ended, and recycles it. Nothing here touches CUDA before the
    first tensor is sent.

    Args:
        name: "cuda", for the device that is current when the first tensor is sent; or "cuda:1", for example.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _device(self) -> torch.device:
        current = torch.cuda.current_device()  # raises in a child that was forked from a process that uses CUDA
        device = torch.device(self._name)
        return torch.device("cuda", current) if device.index is None else device

    @cached_property
    def _stream(self) -> Any:
        new: Any = torch.cuda.Stream  # torch does not annotate it
        return new(self._device)

    def copying(self) -> AbstractContextManager[Any]:
        """The stream of copies as the current one."""
        return torch.cuda.stream(self._stream)

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the GPU, in memory of the stream of copies, once that has come to it."""
        return pinned(tensor).to(self._device, non_blocking=True)

    def mark(self) -> Any:
        """An event on the stream of copies."""
        return self._stream.record_event()

    def place(self) -> Hashable:
        """The calling thread's current stream of the GPU."""
        return torch.cuda.current_stream(self._device)

    def wait(self, mark: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Let the current stream wait for the mark. Memory freed later is used again after this stream's work on it."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(mark)
        for tensor in tensors:
            tensor.record_stream(stream)


def make_target(device: str, pin_memory: bool) -> Target:
    """The target of a device.

    Args:
        device: "cpu", "cuda" or "cuda:N".
        pin_memory: whether tensors of "cpu" should be in page-locked memory.

    Raises:
        OptionError: this process sees no such GPU; a dataset may have been pickled where there is one.
    """
    return HostTarget(pinning(pin_memory)) if device_name("device", device) == "cpu" else CudaTarget(device)
