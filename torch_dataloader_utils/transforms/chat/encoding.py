"""Texts to token ids and labels: a token is trained if it overlaps a marked span of its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.options.packing import IGNORED
from torch_dataloader_utils.transforms.chat.rendering import Span

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
        begin: ids before texts that are framed.
        end: ids after them.
    """

    def __init__(self, tokenizer: Any, begin: Sequence[int], end: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.begin, self.end = list(begin), list(end)

    def __call__(self, rows: Sequence[ChatText]) -> list[TokensAndLabels]:
        """The ids and labels of each row, encoded together, without the GIL."""
        texts = [text for row in rows for text in row.texts]
        encodings = self._tokenizer.encode_batch([text.text for text in texts], add_special_tokens=False)
        parts = iter([_example(text, encoding) for text, encoding in zip(texts, encodings, strict=True)])
        return [self._row(row, [next(parts) for _ in row.texts]) for row in rows]

    def _row(self, row: ChatText, parts: list[TokensAndLabels]) -> TokensAndLabels:
        if row.framed:
            # What comes last is trained with the text before it; what comes first predicts, and is not predicted.
            begin, end = np.array(self.begin, np.int64), np.array(self.end, np.int64)
            parts = [(begin, np.full_like(begin, IGNORED)), *parts, (end, end)]
        if len(parts) == 1:
            return parts[0]
        ids, labels = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(labels)


def _example(text: MarkedText, encoding: Any) -> TokensAndLabels:
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
