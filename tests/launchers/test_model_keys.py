"""Which keys of a batch reach a model under a Trainer: those that it takes, and all that a user's own code asks for."""

from __future__ import annotations

import importlib.util
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import OptionError, Pack, combine, stream

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel, Trainer, TrainingArguments

from torch_dataloader_utils.integrations.transformers import TrainerMixin

ONE: dict[str, Any] = {"num_ranks": 1, "rank": 0}


class KeysTrainer(TrainerMixin, Trainer):
    pass


class Noting(torch.nn.Module):
    """Notes which keys it gets, without the labels' values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.got: list[set[str]] = []

    def answer(self, given: dict[str, Any]) -> dict[str, torch.Tensor]:
        self.got.append(set(given))
        logits = self.linear(torch.ones(4, 1))
        return {"loss": logits.mean(), "logits": logits} if given.get("labels") is not None else {"logits": logits}


class Strict(Noting):
    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        return self.answer({"input_ids": input_ids, "labels": labels})


class Open(Noting):
    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        return self.answer({"input_ids": input_ids, **kwargs})


class OfTransformers(PreTrainedModel):
    config_class = PreTrainedConfig

    def __init__(self) -> None:
        super().__init__(PreTrainedConfig())
        self.noting = Noting()
        self.got = self.noting.got

    def forward(self, input_ids: Any, document_ids: Any = None, **kwargs: Any) -> Any:
        return self.noting.answer({"input_ids": input_ids, "document_ids": document_ids, **kwargs})


PACKED = {"input_ids", "labels", "extra", "position_ids", "document_ids", "cu_seqlens", "max_seqlen"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("keys") / "data"
    path.mkdir()
    lists = [[row % 7 + 1] * (row % 5 + 1) for row in range(200)]
    pq.write_table(pa.table({"input_ids": lists, "labels": lists, "extra": lists}), path / "x.parquet")
    return str(path)


def trainer(folder: str, model: Any, kind: Any = KeysTrainer, loader: Any = None, **settings: Any) -> Any:
    loader = loader or stream(folder, pack=Pack(16), batch_size=4, steps_per_epoch=3, **ONE)
    settings = {"max_steps": 2, "label_names": ["labels"], "use_cpu": True, "report_to": [], **settings}
    return kind(model, TrainingArguments(f"{folder}_out", **settings), train_dataset=loader, eval_dataset=loader)


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (Strict, {"input_ids", "labels"}),
        (Open, PACKED),  # a padded mask is left out before
        (OfTransformers, PACKED - {"cu_seqlens", "max_seqlen"}),  # it names document_ids
    ],
)
def test_a_model_gets_what_it_takes(folder: str, model: Any, kept: set[str], caplog: pytest.LogCaptureFixture) -> None:
    made = model()
    run = trainer(folder, made)
    with caplog.at_level("INFO", "torch_dataloader_utils"):
        run.train()
        run.evaluate()
    said = [record.args for record in caplog.records if "does not take" in record.message]
    assert [set(args[0]) for args in said] == ([PACKED - kept] if PACKED - kept else [])  # type: ignore[index, arg-type]
    assert len(made.got) == 2 + 3
    assert set.union(*made.got) - {"num_items_in_batch", "valid"} == kept
    assert all(kept <= got for got in made.got)


def test_remove_unused_columns_hands_all_on(folder: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        trainer(folder, Strict(), remove_unused_columns=False).train()


def test_a_mix_trains_a_model_of_transformers(folder: str) -> None:
    sources = {"a": folder, "b": folder}
    loader = combine(sources, source_key="from", columns=["input_ids"], batch_size=2, collate_fn=padded, **ONE)
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=8
    )
    run = trainer(folder, LlamaForCausalLM(config), loader=loader)
    run.train()
    assert run.state.global_step == 2


def padded(batch: Any) -> Any:
    ids = torch.nested.nested_tensor_from_jagged(
        batch["input_ids"]["values"].long(), batch["input_ids"]["offsets"].long()
    )
    dense = ids.to_padded_tensor(0)
    return {"input_ids": dense, "labels": dense.masked_fill(dense == 0, -100), "from": batch["from"]}


class OwnLoss(KeysTrainer):
    seen: list[set[str]]

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(set(inputs))
        return super().compute_loss(model, inputs, *args, **kwargs)


def test_a_loss_of_ones_own_gets_all_keys_and_the_model_what_it_takes(folder: str) -> None:
    model = Strict()
    OwnLoss.seen = []
    run = trainer(folder, model, OwnLoss)
    run.train()
    run.evaluate()
    assert all(seen >= PACKED for seen in OwnLoss.seen)
    assert all(got == {"input_ids", "labels"} for got in model.got)


def test_without_labels_a_prediction_gets_what_the_model_takes(folder: str) -> None:
    model = Strict()
    loader = stream(folder, pack=Pack(16, columns=["input_ids"]), batch_size=4, steps_per_epoch=3, **ONE)
    predicted = trainer(folder, model).predict(loader)
    assert len(predicted.predictions) == 12
    assert len(model.got) == 3


def test_a_loss_function_gets_labels_that_the_model_does_not_take(folder: str) -> None:
    class Unlabelled(Noting):
        def forward(self, input_ids: Any) -> Any:
            return self.answer({"input_ids": input_ids})

    got: list[Any] = []

    def loss(outputs: Any, labels: Any, **_: Any) -> torch.Tensor:
        got.append(labels)
        made: torch.Tensor = outputs["logits"].mean()
        return made

    loader = stream(folder, pack=Pack(16), batch_size=4, steps_per_epoch=3, **ONE)
    args = TrainingArguments(f"{folder}_out", max_steps=1, use_cpu=True, report_to=[])
    KeysTrainer(Unlabelled(), args, train_dataset=loader, compute_loss_func=loss).train()
    assert got[0].shape == (4, 16)


def test_a_model_that_takes_nothing_of_a_batch(folder: str) -> None:
    class Other(Noting):
        def forward(self, x: Any) -> Any:
            return self.answer({"x": x})

    with pytest.raises(OptionError, match=r"forward takes none of the batch's keys \['input_ids'.*it takes \['x'\]"):
        trainer(folder, Other()).train()
