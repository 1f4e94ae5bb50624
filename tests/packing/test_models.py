"""Packed batches in models of transformers: what a model sees of a document is the document alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.packing.helpers import make
from torch_dataloader_utils import Pack

transformers = pytest.importorskip("transformers")

WORDS = 50
SIZES = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS = {
    "gpt2": lambda how: transformers.GPT2Config(
        n_positions=64, n_embd=32, n_layer=2, n_head=4, attn_implementation=how, **SIZES
    ),
    "llama": lambda how: transformers.LlamaConfig(attn_implementation=how, **LLAMA, **SIZES),
}
in_all_models = pytest.mark.parametrize(("kind", "how"), [(k, h) for k in CONFIGS for h in ("sdpa", "eager")])


def model_of(kind: str, how: str) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](how)).eval()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokens")
    draw = np.random.default_rng(0)
    documents = [draw.integers(3, WORDS, draw.integers(2, 20)).tolist() for _ in range(40)]
    pq.write_table(pa.table({"input_ids": documents}), folder / "0.parquet", row_group_size=10)
    return str(folder)


def batch_of(data: str, **fields: Any) -> dict[str, Any]:
    pack = Pack(32, labels="input_ids", **fields)
    return dict(next(iter(make(data, pack=pack, split_rows=40, count_rows=True))))


def documents_of(batch: dict[str, Any]) -> list[tuple[int, slice]]:
    """The row of each document and its places in it; padding is none."""
    positions = batch["position_ids"]
    found = []
    for row in range(len(positions)):
        starts = [*(positions[row] == 0).nonzero().flatten().tolist(), positions.shape[1]]
        found += [(row, slice(*pair)) for pair in pairwise(starts)]
    return [(row, place) for row, place in found if batch["input_ids"][row, place].all()]


def differences(model: Any, batch: dict[str, Any], **options: Any) -> list[float]:
    """For each document, how far its logits in the sequence are from those of the document alone."""
    with torch.no_grad():
        packed = model(**{name: value for name, value in batch.items() if name != "labels"}, **options).logits
        return [
            float((packed[row, place] - model(input_ids=batch["input_ids"][row, place][None]).logits[0]).abs().max())
            for row, place in documents_of(batch)
        ]


@in_all_models
@pytest.mark.parametrize("method", ["best_fit", "wrap"])
def test_documents_do_not_see_each_other_without_a_cache(data: str, kind: str, how: str, method: Any) -> None:
    batch, model = batch_of(data, keys="hf", method=method), model_of(kind, how)
    assert len(documents_of(batch)) > 5
    assert max(differences(model, batch, use_cache=False)) < 1e-5


@in_all_models
def test_with_a_cache_they_do_as_the_documentation_warns(data: str, kind: str, how: str) -> None:
    """Passed nothing, a model keeps a cache, and takes a sequence for one document."""
    batch, model = batch_of(data, keys="hf"), model_of(kind, how)
    assert max(differences(model, batch)) > 1e-3


@in_all_models
def test_the_loss_is_the_mean_over_what_documents_predict_of_themselves(data: str, kind: str, how: str) -> None:
    batch, model = batch_of(data, keys="hf"), model_of(kind, how)
    total, count = 0.0, 0
    with torch.no_grad():
        packed = float(model(**batch, use_cache=False).loss)
        for row, place in documents_of(batch):
            ids = batch["input_ids"][row, place][None].long()
            if ids.shape[1] > 1:
                total += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
                count += ids.shape[1] - 1
    assert packed == pytest.approx(total / count, rel=1e-5)
