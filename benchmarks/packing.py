"""Measures packing: how full sequences are, the time that a window takes, and tokens/s next to decoding alone.

    python benchmarks/packing.py [--data FOLDER] [--column tokens] [--rounds 5]

FOLDER holds Parquet files with a column of token lists, such as the table `text` of benchmarks/tables.py. LIMIT decodes
that column on as many threads as there are cores, and discards it; a ratio is that of a pass to the LIMIT run right
before it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from limit import decode

from torch_dataloader_utils import Pack, StructuredDataset
from torch_dataloader_utils.packing.sequences import best_fit

LENGTHS = (2048, 8192)
# The mean and deviation of the logarithm of documents' lengths, by tokens of a sequence.
LOGNORMAL = {2048: (6.0, 1.0), 8192: (6.5, 1.2)}
WINDOW = 4096


def fill(length: int) -> tuple[float, float]:
    """The share of tokens that are no padding in windows of lognormal documents, and the seconds a window takes."""
    rng, seconds, shares = np.random.default_rng(0), [], []
    for _ in range(10):
        lengths = np.clip(rng.lognormal(*LOGNORMAL[length], WINDOW).astype(np.int64), 1, length)
        begin = time.perf_counter()
        sequences = best_fit(lengths, length)
        seconds.append(time.perf_counter() - begin)
        shares.append(lengths.sum() / (length * (sequences.max() + 1)))
    return statistics.mean(shares), statistics.median(seconds)


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--column", default="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for length in LENGTHS:
        share, seconds = fill(length)
        print(f"lognormal documents, {length} tokens: {share:.4f} full, {seconds * 1e3:.1f} ms for {WINDOW} documents")
    if args.data is None:
        return
    torch.set_num_threads(1)
    files = sorted(args.data.glob("*.parquet"))
    tokens = sum(len(pq.read_table(file, columns=[args.column]).column(0).combine_chunks().values) for file in files)
    options = {"columns": [args.column]}
    for length, method, shuffle in product(LENGTHS, ("best_fit", "wrap"), (False, True)):
        batch = {"pack": Pack(length, method=method), "batch_size": 32768 // length, "shuffle": shuffle}
        loader, _ = StructuredDataset.create_dataloader(str(args.data), **options, **batch)
        sequences = sum(len(batch["document_ids"]) for batch in loader)
        pairs = [
            (seconds_of(lambda: decode(files, [args.column])), seconds_of(lambda loader=loader: list(map(len, loader))))
            for _ in range(args.rounds)
        ]
        ratio = statistics.median(most / got for most, got in pairs)
        rate = tokens / statistics.median(got for _, got in pairs) / 1e6
        full = tokens / (sequences * length)
        order = ", shuffled" if shuffle else ""
        speed = f"{rate:.0f} million tokens/s, {ratio:.2f} of LIMIT"
        print(f"{args.data}, {length} tokens, {method}{order}: {full:.4f} full, {speed}")


if __name__ == "__main__":
    main()
