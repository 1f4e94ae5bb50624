"""Options of YAML text build the loader that the same options build in Python: subsets, packing, images, tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import hydra.utils
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake
from PIL import Image
from pyiceberg.catalog import load_catalog
from tokenizers import Tokenizer, models, pre_tokenizers

from torch_dataloader_utils import (
    Buckets,
    DeltaDataset,
    Follow,
    IcebergDataset,
    Pack,
    Padded,
    StructuredDataset,
    Subsets,
)
from torch_dataloader_utils.transforms import DecodeImages, Tokenize

ROWS = 200
RANKS = {"num_ranks": 1, "rank": 0}


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (number, 0, 255)).save(out, "png")
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `rows.parquet`, `images.parquet` and `tokenizer.json`."""
    made = tmp_path_factory.mktemp("config")
    lists = [list(range(row % 7)) for row in range(ROWS)]
    values = {
        "id": range(ROWS),
        "user": [f"u{row % 9}" for row in range(ROWS)],
        "label": [row % 2 for row in range(ROWS)],
    }
    tokens = pa.array(lists, pa.list_(pa.int64()))
    texts = [" ".join("abc"[: row % 4]) for row in range(ROWS)]
    table = pa.table({**values, "input_ids": tokens, "clicks": tokens, "text": texts})
    pq.write_table(table, made / "rows.parquet", row_group_size=20)
    pq.write_table(pa.table({"image": list(map(png, range(20)))}), made / "images.parquet")
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(made / "tokenizer.json"))
    return made


def from_yaml(text: str, **added: Any) -> tuple[Any, Any]:
    """The loader and dataset that hydra builds from YAML text."""
    loader, dataset = hydra.utils.instantiate({**yaml.safe_load(text), **added, **RANKS})
    return loader, dataset


def delivered(loader: Any) -> list[str]:
    return [repr(batch) for batch in loader]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            "columns: [id]\nsubset: {name: val, of: {train: 0.8, val: 0.2}, by: user}",
            {"columns": ["id"], "subset": Subsets({"train": 0.8, "val": 0.2}, by="user")["val"]},
        ),
        ("columns: [id]\nfraction: 0.5\nlimit: 30", {"columns": ["id"], "fraction": 0.5, "limit": 30}),
        (
            "columns: [id, label]\nclass_weights: {label: {0: 0.5, 1: 3}}",
            {"columns": ["id", "label"], "class_weights": {"label": {0: 0.5, 1: 3}}},
        ),
        (
            "columns: [input_ids]\npack: {length: 16, columns: [input_ids], pad: {input_ids: -100}}",
            {"columns": ["input_ids"], "pack": Pack(16, columns=["input_ids"], pad={"input_ids": -100})},
        ),
        (
            "columns: [input_ids]\npack: {kind: pack, length: 16, columns: [input_ids], method: wrap}",
            {"columns": ["input_ids"], "pack": Pack(16, columns=["input_ids"], method="wrap")},
        ),
        (
            "columns: [id, input_ids]\nbatch_tokens: {tokens: 32, long: drop}\nlists: padded",
            {"columns": ["id", "input_ids"], "batch_tokens": Buckets(32, long="drop"), "lists": "padded"},
        ),
        (
            "columns: [input_ids, clicks]\nlists: {'*': ragged, input_ids: {kind: padded, value: -100, multiple: 8}}",
            {"columns": ["input_ids", "clicks"], "lists": {"input_ids": Padded(-100, multiple=8)}},
        ),
        (
            "columns: [id, input_ids, clicks]\njagged: {sparse: [input_ids, clicks]}",
            {"columns": ["id", "input_ids", "clicks"], "jagged": {"sparse": ["input_ids", "clicks"]}},
        ),
    ],
)
def test_options_of_rows(folder: Path, text: str, options: dict[str, Any]) -> None:
    target = "_target_: torch_dataloader_utils.StructuredDataset.create_dataloader\nbatch_size: 8\nshuffle: true\n"
    loader, _ = from_yaml(target + text, path=f"{folder}/rows.parquet")
    same, _ = StructuredDataset.create_dataloader(
        folder / "rows.parquet", batch_size=8, shuffle=True, **RANKS, **options
    )
    assert delivered(loader) == delivered(same) != []


def test_a_tokenizer(folder: Path) -> None:
    tokenized = f"""
    _target_: torch_dataloader_utils.StructuredDataset.create_dataloader
    path: {folder}/rows.parquet
    columns: [text]
    batch_size: 50
    transform:
      _target_: torch_dataloader_utils.transforms.Tokenize
      column: text
      tokenizer: {folder}/tokenizer.json
      max_length: 2
    """
    given = Tokenize("text", folder / "tokenizer.json", max_length=2)
    same, _ = StructuredDataset.create_dataloader(
        folder / "rows.parquet", columns=["text"], batch_size=50, transform=given, **RANKS
    )
    assert delivered(from_yaml(tokenized)[0]) == delivered(same) != []


def test_images_in_a_chain_too(folder: Path) -> None:
    """Hydra makes configs of dataclasses in lists, unless `_convert_` says otherwise."""
    decode = DecodeImages("image", size=(4, 6), fit="crop")
    same, _ = StructuredDataset.create_dataloader(folder / "images.parquet", transform=decode, **RANKS)
    given = "{_target_: torch_dataloader_utils.transforms.DecodeImages, column: image, size: [4, 6], fit: crop}"
    for transform in (given, f"[{given}]", f"{{function: [{given}], rows: any}}"):
        loader, _ = from_yaml(
            "_target_: torch_dataloader_utils.StructuredDataset.create_dataloader\n_convert_: all\n"
            f"transform: {transform}",
            path=f"{folder}/images.parquet",
        )
        assert next(iter(loader))["image"].shape == (20, 3, 4, 6)
        assert delivered(loader) == delivered(same)


def test_an_iceberg_table_that_is_followed(tmp_path: Path) -> None:
    config = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = load_catalog("default", **config)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.events", schema=pa.schema({"id": pa.int64()}))
    table.append(pa.table({"id": range(40)}))
    text = f"""
    _target_: torch_dataloader_utils.IcebergDataset.create_dataloader
    table: ns.events
    catalog_config: {{type: sql, uri: "{config["uri"]}", warehouse: "{config["warehouse"]}"}}
    follow: {{poll: 1, wait: 0, replay: 0.5}}
    """
    loader, dataset = from_yaml(text)
    same, _ = IcebergDataset.create_dataloader(
        "ns.events", catalog_config=config, follow=Follow(wait=0, replay=0.5), **RANKS
    )
    assert delivered(loader) == delivered(same) != []
    table.append(pa.table({"id": range(40, 50)}))
    assert delivered(loader) == delivered(same) != []
    assert dataset.describe().replay == "0.5 older rows beside each appended row: about 5 rows of 1 file"


def test_a_version_of_a_delta_table(tmp_path: Path) -> None:
    for first in (0, 10):
        write_deltalake(tmp_path, pa.table({"id": range(first, first + 10)}), mode="append")
    text = f"_target_: torch_dataloader_utils.DeltaDataset.create_dataloader\ntable: {tmp_path}\nversion: 0"
    loader, dataset = from_yaml(text)
    same, _ = DeltaDataset.create_dataloader(tmp_path, version=0, **RANKS)
    assert (delivered(loader), dataset.version) == (delivered(same), 0)
