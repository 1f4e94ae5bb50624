"""Text to token ids, by tokenizers of Hugging Face."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import OptionError, RowErrors, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.schemas.merge import is_text, plain_type
from torch_dataloader_utils.transforms.columns import check_column, place_of, replaced
from torch_dataloader_utils.transforms.tokenizers import added_ids, keep_to_one_thread, loaded, source_of

_WHO = "Tokenize"


class Tokenize:
    """Replaces a column of text by lists of token ids, int64; picklable.

    Texts are encoded whole blocks at a time, on the reading threads, without the GIL. So that each thread keeps to its
    core, and workers can fork, TOKENIZERS_PARALLELISM becomes "false" unless it is set. A null stays a null.

    Args:
        column: of strings.
        tokenizer: a fast tokenizer of transformers, a `tokenizers.Tokenizer`, the path of a tokenizer.json or of its
            folder, or the name of a model on the Hugging Face Hub. Its own padding and truncation are ignored; later
            changes to it have no effect.
        output: the name of the column of ids, at the place of the text.
        max_length: the most ids of a text, special ones included; None: no limit.
        add_special_tokens: whether to add those of the tokenizer, such as [CLS] and [SEP].
        eos_token: a token to add after each text, also to truncated ones; None: nothing.

    Raises:
        OptionError: an argument is not one of the above.
        UnsupportedTypeError: the tokenizer is of another type, such as one in pure Python.
    """

    def __init__(
        self,
        column: str,
        tokenizer: Any,
        output: str = "input_ids",
        *,
        max_length: int | None = None,
        add_special_tokens: bool = True,
        eos_token: str | None = None,
    ) -> None:
        check_column(column, _WHO)
        check_column(output, _WHO)
        least = 1 if eos_token is None else 2
        if max_length is not None and (type(max_length) is not int or max_length < least):
            raise OptionError(f"{_WHO}(max_length={shown(max_length)}): expected an int, at least {least}, or None.")
        self.column, self.output, self.max_length = column, output, max_length
        self.add_special_tokens, self.eos_token = add_special_tokens, eos_token
        self._source, self._is_json = source_of(tokenizer, _WHO)
        keep_to_one_thread()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with token ids.

        Raises:
            RowErrors: a text begins with the token that the tokenizer puts before each text, such as <s>.
            UnsupportedTypeError: the column is not of strings.
            SchemaMismatchError: another column has the name of the output.
        """
        place = place_of(batch, self.column, _WHO)
        column = batch.column(place)
        if not is_text(plain_type(column.type)):
            raise UnsupportedTypeError(f"{_WHO}: column {self.column!r} holds {column.type}: expected strings.")
        if self.output != self.column and self.output in batch.schema.names:
            raise SchemaMismatchError(f"{_WHO}: the rows already have a column {self.output!r}: pass another output=.")
        ids = pa.array(self._ids(column), pa.list_(pa.int64()))
        return replaced(batch, place, self.output, ids)

    def _ids(self, column: pa.Array) -> list[list[int] | None]:
        tokenizer, begin, end = self._tokenizer
        texts = column.to_pylist()
        present = [text for text in texts if text is not None] if column.null_count else texts
        encodings = tokenizer.encode_batch_fast(present, add_special_tokens=self.add_special_tokens)
        found: list[list[int] | None] = [encoding.ids for encoding in encodings]
        if column.null_count:
            rest = iter(found)
            found = [None if text is None else next(rest) for text in texts]
        if begin:
            self._check_begin(found, begin)
        return [None if ids is None else ids + end for ids in found] if end else found

    def _check_begin(self, found: list[list[int] | None], begin: list[int]) -> None:
        """Check that no text has itself what the tokenizer puts before it: with two of them, models do worse."""
        count = len(begin)
        twice = [row for row, ids in enumerate(found) if ids is not None and ids[count : 2 * count] == begin]
        if twice:
            tokens = "".join(self._tokenizer[0].id_to_token(number) for number in begin)
            error = ValueError(
                f"the text begins with {tokens!r}, which the tokenizer adds, too. Pass "
                f"{_WHO}(add_special_tokens=False), or take it out of the texts"
            )
            raise RowErrors(dict.fromkeys(twice, error))

    @cached_property
    def _tokenizer(self) -> tuple[Any, list[int], list[int]]:
        """This process's tokenizer, which no one else changes, and the ids before and after each text."""
        tokenizer = loaded(self._source, self._is_json, _WHO)
        begin = added_ids(tokenizer)[0] if self.add_special_tokens else []
        end = [] if self.eos_token is None else [tokenizer.token_to_id(self.eos_token)]
        if None in end:
            raise OptionError(f"{_WHO}(eos_token={self.eos_token!r}): the tokenizer has no such token.")
        if self.max_length is not None:
            tokenizer.enable_truncation(self._room(tokenizer, len(end)))
        return tokenizer, begin, end

    def _room(self, tokenizer: Any, end: int) -> int:
        """How many ids of a text the tokenizer may return, so that `end` more fit."""
        assert self.max_length is not None
        special = tokenizer.num_special_tokens_to_add(False) if self.add_special_tokens else 0
        if self.max_length <= special + end:
            raise OptionError(
                f"{_WHO}(max_length={self.max_length}) leaves no room for text beside {special + end} special tokens: "
                "pass more, or add_special_tokens=False."
            )
        return self.max_length - end

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the loaded tokenizer."""
        return {name: value for name, value in self.__dict__.items() if name != "_tokenizer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        keep_to_one_thread()

    def __repr__(self) -> str:
        options = f"max_length={self.max_length}, eos_token={self.eos_token!r}"
        tokenizer = "..." if self._is_json else repr(self._source)
        return f"Tokenize({self.column!r}, {tokenizer}, output={self.output!r}, {options})"
