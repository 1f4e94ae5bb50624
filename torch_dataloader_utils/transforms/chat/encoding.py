"""Texts to token ids and labels: a token is trained if it overlaps a marked span of its text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.options.packing import IGNORED
from torch_dataloader_utils.transforms.chat.rendering import Span
from torch_dataloader_utils.transforms.tokenizers import added_ids

_LOG = logging.getLogger("torch_dataloader_utils")

Ids: TypeAlias = npt.NDArray[np.int64]
TokensAndLabels: TypeAlias = tuple[Ids, Ids]  # of a row, int64 [tokens]


@dataclass(frozen=True)
class MarkedText:
    """A text, encoded by itself.

    Attributes:
        text: the text.
        spans: the characters that are trained, in order; None for all.
    """

    text: str
    spans: Sequence[Span] | None


@dataclass(frozen=True)
class ChatText:
    """The texts of a row, whose tokens follow one another.

    Attributes:
        texts: the texts.
        framed: whether they get what the tokenizer puts before and after a text; rendered chats have it already.
    """

    texts: tuple[MarkedText, ...]
    framed: bool = False


class ChatEncoder:
    """Encodes the texts of rows. One per process.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        stop: the token that ends a text for the model; None if it is not known.
    """

    def __init__(self, tokenizer: Any, stop: str | None) -> None:
        self._tokenizer = tokenizer
        self._begin, self._end = added_ids(tokenizer)
        self._stop = None if stop is None else tokenizer.token_to_id(stop)
        self._told = self._stop is None or bool(self._end)

    def __call__(self, rows: Sequence[ChatText]) -> list[list[TokensAndLabels]]:
        """The ids and labels of each text of each row, encoded together, without the GIL."""
        texts = [text for row in rows for text in row.texts]
        encodings = self._tokenizer.encode_batch([text.text for text in texts], add_special_tokens=False)
        parts = map(_labelled, texts, encodings)
        return [[next(parts) for _ in row.texts] for row in rows]

    def joined(self, row: ChatText, parts: Sequence[TokensAndLabels]) -> TokensAndLabels:
        """The ids and labels of a row.

        Raises:
            ValueError: its text begins with what the tokenizer puts before it.
        """
        if not row.framed:
            (only,) = parts
            return only
        first, last = parts[0][0], parts[-1][0]
        if self._begin and first[: len(self._begin)].tolist() == self._begin:
            tokens = "".join(map(self._tokenizer.id_to_token, self._begin))
            raise ValueError(
                f"the prompt begins with {tokens!r}, which the tokenizer adds, too: take it out of the text"
            )
        if not self._told and (not len(last) or last[-1] != self._stop):
            self._told = True
            _LOG.warning(
                "ChatTemplate: a completion does not end with %s, and the tokenizer adds no token after it, so the "
                "model will not learn to stop. End the texts with it",
                self._tokenizer.id_to_token(self._stop),
            )
        begin, end = np.array(self._begin, np.int64), np.array(self._end, np.int64)
        ids, labels = zip((begin, np.full_like(begin, IGNORED)), *parts, (end, end), strict=True)
        return np.concatenate(ids), np.concatenate(labels)


def _labelled(text: MarkedText, encoding: Any) -> TokensAndLabels:
    ids = np.array(encoding.ids, np.int64)
    if text.spans is None:
        return ids, ids
    labels = np.full_like(ids, IGNORED)
    for span in text.spans:
        first, last = tokens_of(encoding, span)
        labels[first:last] = ids[first:last]
    return ids, labels


def tokens_of(encoding: Any, span: Span) -> tuple[int, int]:
    """The tokens [first, last) that overlap these characters.

    Only the borders are asked for: the offsets of all tokens would take as long as rendering a chat.
    """
    inside = range(*span)
    first = next((token for char in inside if (token := encoding.char_to_token(char)) is not None), None)
    if first is None:  # no character, or only such as the tokenizer leaves out
        return 0, 0
    last: int = next(token for char in reversed(inside) if (token := encoding.char_to_token(char)) is not None)
    # A character of several bytes may have several tokens, of which the first was found.
    while last + 1 < len(encoding) and encoding.token_to_chars(last + 1)[0] < span[1]:
        last += 1
    return first, last + 1
