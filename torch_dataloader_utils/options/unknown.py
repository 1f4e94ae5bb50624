"""Advice for a keyword that does not exist: what it is called here, or the keyword that it misspells."""

from __future__ import annotations

import difflib
from collections.abc import Collection

# With a lower threshold, different words match: "batch_bytes" and "cache_bytes", "split" and "split_rows".
_ALIKE = 0.85

_TORCH = "an option of torch's DataLoader: "
_FEWER = "use limit=n for the first n rows, fraction for a sample, or steps_per_epoch=n for n steps in every epoch."
_PARTS = "use subsets={'train': 0.9, 'val': 0.1} and subset='train', or give files, such as path='data/train/'."
_SECRETS = "credentials are keys of storage_options={...}."
_TEXT = "options of a file format are keys of format_options={...}."
_SHARDS = "use num_ranks and rank; under a launcher both are found without you."
_EPOCHS = "an epoch is one loop over the loader; dataset.set_epoch(epoch) says which."
_LABELS = "a batch is a dict of all columns: take batch['label'] in your loop."
_STOP = "use stop='first' (until the first dataset ends) or stop='all' (until each has been read)."
_BAR = "use show_progress=True, which shows a bar for each epoch."

# Keywords of other libraries and launchers, and what to do here, in a sentence each.
_HINTS = {
    "drop_last": f"{_TORCH}use last_batch='drop' (the last batch of a rank) or even='drop' (equal steps on all ranks).",
    "prefetch_factor": f"{_TORCH}use prefetch_bytes (a bound in decoded bytes).",
    "sampler": f"{_TORCH}use shuffle=True, or a split_strategy.",
    "batch_sampler": f"{_TORCH}use batch_size and shuffle=True.",
    "generator": f"{_TORCH}use shuffle_seed.",
    "worker_init_fn": f"{_TORCH}use transform (it runs in the workers).",
    "drop_remainder": "use last_batch='drop' (the last batch of a rank) or even='drop' (equal steps on all ranks).",
    "local_rank": "use rank, which is the global one.",
    "streaming": "data are always streamed: leave it out.",
    "skip": "use loader.skip_steps(first, last) to skip batches, or filters to leave rows out.",
    "tokenizer": "tokenize in transform, which runs in the workers.",
    "infinite": "use steps_per_epoch=n: rows begin again when they end.",
    "weights": "use combine([dataset, ...], weights=[...]), which mixes datasets.",
    "max_length": "use lists='padded' to pad lists, or cut them in transform.",
    "recursive": "folders are read with all folders below them: leave it out.",
    "resume": "use loader.load_state_dict(state).",
    **dict.fromkeys(("split", "train", "test", "val", "valid", "validation"), _PARTS),
    **dict.fromkeys(("test_size", "train_size", "validation_split", "train_test_split"), _PARTS),
    **dict.fromkeys(("frac", "subsample", "sample_fraction"), _FEWER),
    **dict.fromkeys(("take", "head", "nrows", "n_rows", "max_rows", "max_samples", "num_samples"), _FEWER),
    **dict.fromkeys(("credentials", "key", "secret", "token", "endpoint_url", "region_name", "anon"), _SECRETS),
    **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), _SECRETS),
    **dict.fromkeys(("delimiter", "sep", "header", "encoding", "quotechar", "null_values", "on_bad_lines"), _TEXT),
    **dict.fromkeys(("num_shards", "shard_index", "shard_id", "shard_count", "num_replicas"), _SHARDS),
    **dict.fromkeys(("epoch", "epochs", "num_epochs", "repeat"), _EPOCHS),
    **dict.fromkeys(("progress", "progress_bar", "tqdm"), _BAR),
    **dict.fromkeys(("label", "labels", "target", "label_column", "target_column"), _LABELS),
}  # fmt: skip

# The same for keywords of `combine`.
_OF_COMBINE = {
    **dict.fromkeys(("probabilities", "probs", "proportions", "ratios"), "use weights, whose shares are exact."),
    **dict.fromkeys(("stopping_strategy", "stop_criteria", "strategy"), _STOP),
    "epoch_size": "use rows_per_epoch, counted over all ranks.",
}

# Other names for our keywords.
_SYNONYMS = {
    "buffer_size": "shuffle_buffer_size",
    "cache": "cache_dir",
    "data_files": "path",
    "file_format": "format",
    "features": "columns",
    "fields": "columns",
    "map": "transform",
    "map_fn": "transform",
    "max_seq_length": "pack_length",
    "max_tokens": "batch_tokens",
    "max_tokens_per_batch": "batch_tokens",
    "num_proc": "num_workers",
    "num_threads": "num_workers",
    "packing": "pack",
    "packing_strategy": "pack_method",
    "pad_to_multiple_of": "pad_multiple",
    "pad_token_id": "pad_values",
    "padding_value": "pad_values",
    "paths": "path",
    "predicate": "filters",
    "preprocess": "transform",
    "query": "filters",
    "seed": "shuffle_seed",
    "select": "columns",
    "seq_length": "pack_length",
    "token_budget": "batch_tokens",
    "transforms": "transform",
    "usecols": "columns",
    "where": "filters",
    "workers": "num_workers",
    "world_size": "num_ranks",
}


def advice(name: str, known: Collection[str], function: str) -> str:
    """A sentence that says what to use instead of an unknown keyword.

    Args:
        name: the keyword.
        known: the keywords that exist.
        function: the name of what takes them; its help lists them.
    """
    if function == "combine" and name in _OF_COMBINE:
        return _OF_COMBINE[name]
    if name in _HINTS:
        return _HINTS[name]
    if name in _SYNONYMS:
        return f"use {_SYNONYMS[name]}."
    begun = [option for option in known if option.startswith(f"{name}_")]
    # Of several that begin so, the most similar: `batch` is batch_size, not batch_tokens.
    close = difflib.get_close_matches(name, begun or known, n=1, cutoff=_ALIKE if not begun else 0.0)
    return f"did you mean {close[0]!r}?" if close else f"see help({function}) for all options."
