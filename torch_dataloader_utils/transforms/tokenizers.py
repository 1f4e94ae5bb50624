"""Tokenizers of Hugging Face: where they come from, and what they add to a text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch_dataloader_utils.errors import DataNotFoundError, MissingExtraError, UnsupportedTypeError


def keep_to_one_thread() -> None:
    """Let tokenizers start no threads of their own, unless the user decided about that.

    The library reads the variable on each call. Its threads would compete with the reading threads, and be missing in
    forked workers.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def source_of(tokenizer: Any, who: str) -> tuple[str, bool]:
    """A path or name, or the tokenizer as JSON; and whether it is JSON.

    Raises:
        UnsupportedTypeError: it is of another type, such as one in pure Python.
    """
    if isinstance(tokenizer, (str, os.PathLike)):
        return os.fspath(tokenizer), False
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(tokenizer, "encode_batch_fast"):
        raise UnsupportedTypeError(
            f"{who} got a tokenizer of type {type(tokenizer).__name__}: expected a fast tokenizer of transformers, a "
            "tokenizers.Tokenizer (0.20 or newer), or a path or name. Call any other one in a transform of your own."
        )
    return tokenizer.to_str(), True


def loaded(source: str, is_json: bool, who: str) -> Any:
    """A tokenizer of this process that no one else changes, without padding and truncation.

    Raises:
        MissingExtraError: the package tokenizers is not installed.
        DataNotFoundError: there is no such file.
    """
    tokenizer = _read(source, is_json, who)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def added_ids(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts before a text and after it, such as those of <s> and </s>."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    special, ids = encoding.special_tokens_mask, encoding.ids
    text = [place for place, added in enumerate(special) if not added] or [len(ids)]
    return ids[: text[0]], ids[text[-1] + 1 :]


def _read(source: str, is_json: bool, who: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError(f"{who} needs tokenizers: pip install 'torch-dataloader-utils[text]'") from error
    if is_json:
        return Tokenizer.from_str(source)
    path = Path(source, "tokenizer.json") if Path(source).is_dir() else Path(source)
    if path.is_file():
        return Tokenizer.from_file(str(path))
    if path.suffix == ".json":
        raise DataNotFoundError(f"{who}: there is no file {str(path)!r}: pass a tokenizer.json or its folder.")
    return Tokenizer.from_pretrained(source)
