"""Which keys of a batch a model takes: by the signature of its `forward`, and by what a loader adds to batches."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from transformers import PreTrainedModel

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.options.packing import KEYS, POSITIONS


def added_keys(options: Options) -> frozenset[str]:
    """The keys that a loader adds to those of the columns, and that no model of transformers knows."""
    pack = options.pack.pack
    packed = () if pack is None or pack.keys else [prefix + key for prefix in pack.prefixes for key in KEYS]
    return frozenset({options.batch.valid_key, options.mix.source_key or "", *packed} - {"", POSITIONS})


def taken_keys(keys: Collection[str], model: Any, added: Collection[str]) -> list[str]:
    """Those of these keys that the model's `forward` takes.

    One with `**kwargs` takes all; a model of transformers hands them on to its attention and its loss, so it gets none
    of those that the loader has added, unless `forward` names them.

    Args:
        keys: of a batch.
        model: not wrapped by DDP or the like; of PEFT, its base model counts.
        added: what the loader has added.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    parameters = inspect.signature(base.forward).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        hidden = set(added) if isinstance(base, PreTrainedModel) else set()
        return [key for key in keys if key in parameters or key not in hidden]
    return [key for key in keys if key in parameters]


def inputs_of(batch: Mapping[str, Any], model: Any, labels: Collection[str], added: Collection[str]) -> dict[str, Any]:
    """The part of a batch that the model takes, and its labels, which a Trainer may take for its loss.

    Raises:
        OptionError: the model takes nothing of it.
    """
    kept = taken_keys(batch, model, added)
    if not kept:
        raise OptionError(
            f"the model's forward takes none of the batch's keys {list(batch)}: it takes "
            f"{list(inspect.signature(model.forward).parameters)}. Name the columns so, or rename them in collate_fn; "
            "remove_unused_columns=False in TrainingArguments hands all keys on."
        )
    return {key: value for key, value in batch.items() if key in kept or key in labels}
