"""A pass that keeps a state of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_dataloader_utils.checkpoint.form import sealed
from torch_dataloader_utils.iteration.begun_pass import Pass
from torch_dataloader_utils.iteration.epochs import Epochs
from torch_dataloader_utils.iteration.iterator import BatchIterator


class StatefulIterator(BatchIterator):
    """One pass with a state of its own, for frameworks that save the state of an iterator."""

    def __init__(self, epochs: Epochs) -> None:
        super().__init__(epochs.passes)
        self._epochs = epochs
        self._ended: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The progress of this pass; after the pass ends, its end, while the dataset's state is the next epoch."""
        if self._ended is not None:
            return dict(self._ended)
        current, codec = self._pass, self._epochs.codec
        if current is None:
            return codec.state(self._passes.place)
        state = codec.state(current.now)
        return sealed({**state, "ended": True}) if current.over else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was taken. Delivers nothing if that was the end of a pass."""
        if state.get("ended"):
            self.close()
            self._pass, self._ended = None, state
            return
        place = self._epochs.codec.place(state)
        with self._passes.ended():
            self._passes.load(place)
            self._pass = None

    def _begin(self) -> Pass | None:
        return super()._begin() if self._ended is None else None
