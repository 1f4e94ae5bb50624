"""TRL: a mixin that makes an SFTTrainer train and evaluate on our loaders.

The constructor of an SFTTrainer takes only datasets, which it tokenises, truncates and packs by `map`. With the mixin
it gets a stand-in of one row, and what it would do to the rows is said to the loader instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from torch_dataloader_utils.errors import MissingExtraError, OptionError
from torch_dataloader_utils.integrations.transformers import TrainerMixin, loader_of
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options.packing import DOCUMENTS, POSITIONS

try:
    from datasets import Dataset
    from trl import SFTConfig
except ModuleNotFoundError as error:
    raise MissingExtraError("SFTMixin needs TRL: pip install trl") from error

# What an SFTConfig would do to the rows, and what does it to those of a loader.
INSTEAD = {
    "packing": "pass pack=Pack(length) to the loader",
    "packing_strategy": "pass pack=Pack(length, long='truncate') to the loader for 'bfd', Pack(length) for "
    "'bfd_split', Pack(length, method='wrap') for 'wrapped'",
    "eval_packing": "pass pack=Pack(length) to the loader of the evaluation",
    "padding_free": "pass pack=Pack(length) to the loader, whose sequences hold whole documents",
    "max_length": "pass pack=Pack(length) to the loader, or max_length= to ChatTemplate",
    "truncation_mode": "pass long='right' (keep_start) or long='left' (keep_end) to ChatTemplate",
    "pad_to_multiple_of": "choose the length of Pack(length), or pass lists=Padded(multiple=) to the loader",
    "assistant_only_loss": "pass transform=ChatTemplate(tokenizer, mask='assistant') to the loader",
    "completion_only_loss": "pass transform=ChatTemplate(tokenizer, prompt=, completion=) to the loader",
    "chat_template_path": "set tokenizer.chat_template, and pass the tokenizer to ChatTemplate and to the Trainer",
    "dataset_text_field": "name the column in the transform of the loader, such as Tokenize(column, tokenizer)",
    "dataset_num_proc": "pass num_workers= to the loader",
    "shuffle_dataset": "pass shuffle=True to the loader",
}
_SKIP = "skip_prepare_dataset"


class SFTMixin(TrainerMixin):
    """Makes a `trl.SFTTrainer` use loaders as `train_dataset` and `eval_dataset`; put it first.

    Example:
        ```python
        class MyTrainer(SFTMixin, SFTTrainer):
            pass


        chat = ChatTemplate(tokenizer)
        loader = stream("chats/", transform=chat, pack=Pack(2048, keys="hf"), batch_size=4, steps_per_epoch=1000)
        args = SFTConfig("checkpoints", max_steps=3000, max_length=None)
        trainer = MyTrainer(model, args, train_dataset=loader, processing_class=tokenizer)
        trainer.train(resume_from_checkpoint=True)
        ```

    Args:
        model: as for an SFTTrainer.
        args: an SFTConfig; None for that of an SFTTrainer.
        data_collator: None where the loader is ours.
        train_dataset: a loader, or a dataset as for an SFTTrainer.
        eval_dataset: a loader, or a dict of loaders by name.
        *others: as for an SFTTrainer.
        **keywords: as for an SFTTrainer.

    Raises:
        OptionError: an option would change rows that come from a loader; it names what does that instead.
    """

    def __init__(
        self,
        model: Any,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *others: Any,
        **keywords: Any,
    ) -> None:
        loader = loader_of(train_dataset)
        if loader is None:
            super().__init__(model, args, data_collator, train_dataset, eval_dataset, *others, **keywords)  # type: ignore[call-arg]
            return
        _check_given(args, data_collator, keywords)
        if eval_dataset is not None and not _are_loaders(eval_dataset):
            raise OptionError(
                f"eval_dataset is a {type(eval_dataset).__name__}, but train_dataset is a loader: pass a loader, or a "
                "dict of loaders, to both."
            )
        args = SFTConfig(f"{_name_of(model)}-SFT") if args is None else args
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), _SKIP: True}
        stand_in = Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})
        of_eval = None if eval_dataset is None else stand_in
        super().__init__(model, args, data_collator, stand_in, of_eval, *others, **keywords)  # type: ignore[call-arg]
        self.train_dataset, self.eval_dataset = loader, eval_dataset

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The metrics of a loader, of a dict of loaders, or of what an SFTTrainer takes."""
        evaluate: Any = super().evaluate  # type: ignore[misc]  # of the SFTTrainer
        if eval_dataset is None or not _are_loaders(eval_dataset):
            metrics: dict[str, float] = evaluate(eval_dataset, *args, **kwargs)
            return metrics
        before, self.eval_dataset = self.eval_dataset, eval_dataset
        try:
            metrics = evaluate(None, *args, **kwargs)
        finally:
            self.eval_dataset = before
        return metrics

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of the SFTTrainer, whose `num_tokens` then counts the tokens of all sequences of a batch."""
        result = super().compute_loss(model, inputs, *args, **kwargs)
        trainer: Any = self
        if trainer.model.training and "attention_mask" not in inputs and POSITIONS in inputs:
            # It counts the length of one sequence: its own batches without a mask are a single one. No public name
            # leads to its count, which it logs with the entries of `_metrics`.
            missing = tokens_in(inputs) - inputs[POSITIONS].size(1)
            counted = trainer.accelerator.gather(torch.tensor(missing, device=inputs[POSITIONS].device)).sum().item()
            trainer._total_train_tokens += counted // trainer._tp_size
            trainer._metrics["train"]["num_tokens"] = [trainer._total_train_tokens]
        return result


def tokens_in(batch: Mapping[str, Any]) -> int:
    """The tokens of a batch of packed sequences: without padding where the batch says what is."""
    if DOCUMENTS in batch:
        return int((batch[DOCUMENTS] >= 0).sum())
    return int(batch[POSITIONS].numel())


def _are_loaders(given: Any) -> bool:
    """Whether it is a loader or a dict of loaders."""
    values = list(given.values()) if isinstance(given, Mapping) else [given]
    return bool(values) and all(isinstance(loader_of(value), StructuredLoader) for value in values)


def _check_given(args: Any, data_collator: Any, keywords: Mapping[str, Any]) -> None:
    """Check that nothing is given that an SFTTrainer would do to the rows of a dataset."""
    if args is not None and not isinstance(args, SFTConfig):
        raise OptionError(f"args is a {type(args).__name__}: expected an SFTConfig.")
    defaults = {} if args is None else {field.name: field.default for field in fields(args)}
    given = {name: getattr(args, name) for name in INSTEAD if name in defaults}
    # None: TRL's own word for "do not", such as max_length=None.
    changed = [name for name, value in given.items() if value is not None and value != defaults[name]]
    if changed:
        listed = "; ".join(f"{name}={given[name]!r}: leave it out, and {INSTEAD[name]}" for name in changed)
        raise OptionError(f"an SFTTrainer does nothing to the rows of a loader. {listed}.")
    if keywords.get("formatting_func") is not None:
        raise OptionError("formatting_func does nothing to the rows of a loader: pass it as a transform of the loader.")
    if data_collator is not None:
        raise OptionError("data_collator does nothing to the batches of a loader: pass collate_fn to the loader.")


def _name_of(model: Any) -> str:
    """The last part of a model's name, by which an SFTTrainer names its folder."""
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
    return str(name).rsplit("/", 1)[-1] or "model"
