"""torchtitan: a data loader of packed sequences, built from its config, with states for its checkpoints.

torchtitan's models do not shift labels: label t is the token that follows token t, within its document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.distributed as dist

from torch_dataloader_utils.api.combined import combine
from torch_dataloader_utils.api.stream import stream
from torch_dataloader_utils.checkpoint.state_dict import unknown_counts
from torch_dataloader_utils.errors import EmptyDatasetError, Example, MissingExtraError, OptionError, ShardingError, use
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options.packing import DOCUMENTS, IGNORED, POSITIONS, Pack

try:
    import tyro
    from torchtitan.components.dataloader import BaseDataLoader
except ModuleNotFoundError as error:
    raise MissingExtraError("PackedDataLoader needs torchtitan: pip install torchtitan") from error

_OF_TORCHTITAN = {
    "batch_size": "training.local_batch_size",
    "num_ranks": "the mesh",
    "rank": "the mesh",
    "ranks": "the mesh",
}

_JSON = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda given: json.loads(given[0]),
    is_instance=lambda options: isinstance(options, dict),
    str_from_instance=lambda options: [str(options)],
)


class PackedDataLoader(BaseDataLoader):  # type: ignore[misc]  # untyped where torchtitan is not installed
    """Packed sequences as torchtitan trains on them: pairs of `{"input", "positions"}` and labels, int64 [B, L] each.

    B is `training.local_batch_size` and L `training.seq_len`. `positions` begin at 0 in each document. A label is the
    token after its own; -100 at the last token of a document and of a sequence, and where padding or a repeat follows.

    Example:
        ```python
        dataloader = PackedDataLoader.Config(
            source="tokens/", options={"pack": {"method": "wrap"}, "shuffle": True, "even": "drop"}
        )
        ```

    Args:
        config: what is read.
        dp_world_size: the number of ranks.
        dp_rank: this process's rank; processes that share it read the same rows.
        seq_len: the tokens of a sequence (L).
        local_batch_size: the sequences of a batch (B).
        **_: what else torchtitan builds loaders with, such as its tokenizer.

    Raises:
        OptionError: an option is for torchtitan to set, or sequences have another length.
        ShardingError: ranks may have different numbers of steps.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """What is read.

        Attributes:
            source: as the first argument of `stream`; a dict of datasets as that of `combine`; None: `dataset_path`.
            options: keywords of `stream`, or of `combine`. `pack` may be a dict of fields, without the length, which is
                `seq_len`; without `pack`, it is `Pack(seq_len)`.
            tokens: the key of the token ids.
            labels: the key of the labels, not shifted; without such a key, each token is its own label.
            infinite: whether another epoch follows each epoch.
        """

        # torchtitan makes a flag of its command line of each field: a path, and JSON.
        source: Annotated[Any, tyro.conf.arg(constructor=str)] = None
        options: Annotated[dict[str, Any], _JSON] = field(default_factory=dict)
        tokens: str = "input_ids"
        labels: str = "labels"
        infinite: bool = True

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        source = config.dataset_path if config.source is None else config.source
        if source is None:
            raise OptionError("PackedDataLoader.Config needs source= or dataset_path=: what is read.")
        options = {
            **_of_loader(config.options, seq_len),
            "batch_size": local_batch_size,
            **_ranks(dp_world_size, dp_rank),
        }
        make: Any = combine if isinstance(source, Mapping) else stream
        self.loader: StructuredLoader[Any, Any] = make(source, **options)
        self._tokens, self._labels, self._infinite = config.tokens, config.labels, config.infinite
        self._valid = passes_of(self.loader.dataset).options.batch.valid_key
        _check_steps(self.loader, dp_world_size)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """The batches from the position on, over all epochs if it is infinite."""
        empty = 0  # passes in a row: one, where the position is the end of an epoch
        while empty < 2:
            empty += 1
            for batch in self.loader:
                empty = 0
                yield self._pair(batch)
            if not self._infinite:
                return
        raise EmptyDatasetError(f"{self.loader!r} has no sequence for this rank: torchtitan would wait for ever.")

    def state_dict(self) -> dict[str, Any]:
        """The position, the same on all ranks: any number of ranks can load it.

        Where counts are known only after reading, the ranks exchange their positions, so each must call it, as they do
        when a checkpoint is saved or loaded.
        """
        state = self.loader.state_dict()
        return self.loader.state_dict(all_ranks=True) if unknown_counts(state) and dist.is_initialized() else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin where the state was taken; an empty state, which torchtitan takes for none, changes nothing."""
        if state_dict:
            self.loader.load_state_dict(state_dict)

    def _pair(self, batch: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        needed = [self._tokens, POSITIONS] if DOCUMENTS in batch else [self._tokens, POSITIONS, self._labels]
        missing = [key for key in needed if key not in batch]
        if missing:
            raise OptionError(f"PackedDataLoader: a batch has no {missing[0]!r}, only {list(batch)}.")
        tokens, positions = batch[self._tokens].long(), batch[POSITIONS].long()
        # Without labels, each token is its own, but not padding.
        given = batch.get(self._labels)
        labels = tokens.masked_fill(batch[DOCUMENTS] < 0, IGNORED) if given is None else given.long()
        if self._valid in batch:  # repeats, of whole sequences or of tokens
            real = batch[self._valid]
            labels = labels.masked_fill(~(real if real.ndim == 2 else real[:, None]), IGNORED)
        return {"input": tokens, "positions": positions}, next_labels(labels, positions)


def next_labels(labels: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The label of each token's successor in its document: int64 [B, L], -100 where there is none.

    Args:
        labels: of the tokens themselves, int64 [B, L].
        positions: of the tokens in their documents, which begin at 0, int64 [B, L].
    """
    shifted = torch.full_like(labels, IGNORED)
    shifted[:, :-1] = labels[:, 1:].masked_fill(positions[:, 1:] == 0, IGNORED)
    return shifted


def _of_loader(options: Mapping[str, Any], length: int) -> dict[str, Any]:
    """The keywords of a loader, with sequences of this length."""
    for name in options:
        if name in _OF_TORCHTITAN:
            raise OptionError(
                f"PackedDataLoader: options has {name!r}, which torchtitan sets by {_OF_TORCHTITAN[name]}."
            )
    pack = options.get("pack", {})
    if isinstance(pack, Mapping):
        pack = Pack(**{"length": length, **pack})
    found = pack.length if isinstance(pack, Pack) else pack
    if found != length:
        raise OptionError(
            f"PackedDataLoader: pack makes sequences of {found} tokens, but training.seq_len is {length}: leave the "
            "length out of pack, as in {'method': 'wrap'}."
        )
    return {**options, "pack": pack}


def _ranks(num_ranks: int, rank: int) -> dict[str, Any]:
    """The keywords that name the rank; of several processes that share ranks, by a mesh of them."""
    if not dist.is_initialized() or dist.get_world_size() in (1, num_ranks):
        return {"num_ranks": num_ranks, "rank": rank}
    of_all: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(of_all, rank)
    processes = sorted(range(len(of_all)), key=lambda process: of_all[process])
    mesh = torch.tensor(processes).reshape(num_ranks, -1)
    device = torch.accelerator.current_accelerator(check_available=True)
    return {
        "ranks": dist.device_mesh.DeviceMesh(
            "cpu" if device is None else device.type, mesh, mesh_dim_names=("dp", "peers")
        )
    }


def _check_steps(loader: StructuredLoader[Any, Any], num_ranks: int) -> None:
    options = passes_of(loader.dataset).options
    shard = options.shard
    if num_ranks > 1 and not shard.levels and shard.steps_per_epoch is None:
        steps = use(steps_per_epoch=Example("n", 100))
        raise ShardingError(
            f"torchtitan's {num_ranks} ranks must have the same number of steps in each epoch.",
            remedies=[steps] if options.uncounted else [use(even="drop"), steps],
        )
