"""Measures chats to token ids and labels: rows/s of ChatTemplate, alone and in a loader, next to datasets.map.

    python benchmarks/chat.py [--rows 2000] [--turns 8] [--rounds 3] [--workers 2]

Processes of `map` take processor time that is not counted. Chats are synthetic, the tokenizer is a byte-level BPE that
is trained on them, and the template is that of Qwen3 for training, as TRL ships it. All ways run in each round, one
after another, and the best round of each counts. `map` calls `apply_chat_template` with
`return_assistant_tokens_mask=True`, as TRL's SFTTrainer does, with as many processes.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from torch_dataloader_utils import Pack, stream
from torch_dataloader_utils.transforms import ChatTemplate

TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3_training.jinja"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"]


def chats(rows: int, turns: int) -> list[list[dict[str, str]]]:
    """Chats of words that have frequencies as in a language."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(3000)]
    weights = [1 / (place + 1) for place in range(len(words))]
    roles = ("user", "assistant")
    return [
        [
            {"role": roles[turn % 2], "content": " ".join(draw.choices(words, weights, k=draw.randint(20, 60)))}
            for turn in range(turns)
        ]
        for _ in range(rows)
    ]


def tokenizer_of(rows: list[list[dict[str, str]]]) -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    texts = (message["content"] for row in rows[:500] for message in row)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    made.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", chat_template=TEMPLATE.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    datasets.disable_progress_bars()
    rows = chats(args.rows, args.turns)
    tokenizer = tokenizer_of(rows)
    transform = ChatTemplate(tokenizer)
    batch = pa.record_batch({"messages": rows})

    def mapped(row: dict[str, Any]) -> dict[str, Any]:
        found = tokenizer.apply_chat_template(row["messages"], return_assistant_tokens_mask=True, return_dict=True)
        return {"input_ids": found["input_ids"], "assistant_masks": found["assistant_masks"]}

    def of_datasets(processes: int | None) -> None:
        source = datasets.Dataset(pa.Table.from_batches([batch]))
        source.map(mapped, remove_columns=["messages"], num_proc=processes, load_from_cache_file=False)

    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_batches([batch]), f"{folder}/chats.parquet", row_group_size=250)

        def in_a_loader(workers: int) -> None:
            for _ in stream(folder, transform=transform, pack=Pack(2048, keys="hf"), batch_size=8, num_workers=workers):
                pass

        ways: dict[str, Callable[[], object]] = {
            "ChatTemplate": lambda: transform(batch),
            "apply_chat_template": lambda: [mapped({"messages": row}) for row in rows],
            "datasets.map": lambda: of_datasets(None),
            "loader, packed, 0 threads": lambda: in_a_loader(0),
            f"loader, packed, {args.workers} threads": lambda: in_a_loader(args.workers),
            f"datasets.map, {args.workers} processes": lambda: of_datasets(args.workers),
        }
        best = {name: (float("inf"), float("inf")) for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                began = time.perf_counter(), time.process_time()
                way()
                taken = time.perf_counter() - began[0], time.process_time() - began[1]
                best[name] = min(best[name][0], taken[0]), min(best[name][1], taken[1])
    tokens = len(transform(batch)["input_ids"].values)
    print(f"{args.rows} chats of {tokens / args.rows:.0f} tokens, best of {args.rounds} rounds")
    for name, (seconds, processor) in best.items():
        own = f"{processor / args.rows * 1e3:6.2f} ms a row of this process's processor time"
        print(f"{name:28} {args.rows / seconds:7,.0f} rows/s, {own}")


if __name__ == "__main__":
    main()
