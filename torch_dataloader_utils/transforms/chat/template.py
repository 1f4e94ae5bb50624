"""`ChatTemplate`: the transform, its arguments, and what becomes of rows that are too long or have nothing to train."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.errors import DataLoaderUtilsError, MissingExtraError, OptionError, RowErrors
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.options.packing import IGNORED
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.transforms.chat.columns import ChatColumns
from torch_dataloader_utils.transforms.chat.encoding import ChatEncoder, ChatText, TokensAndLabels
from torch_dataloader_utils.transforms.chat.marking import ChatMarker
from torch_dataloader_utils.transforms.chat.probe import probe
from torch_dataloader_utils.transforms.chat.rendering import renderer_of
from torch_dataloader_utils.transforms.tokenizers import keep_to_one_thread, loaded, source_of

_WHO = "ChatTemplate"
_MASKS = ("assistant", "last", "all")
_LONG = ("error", "drop", "right", "left")
_RESERVED = (
    *("messages", "tools", "documents", "conversations", "chat_template"),
    *("add_generation_prompt", "continue_final_message", "return_assistant_tokens_mask"),
)
_ROWS = 32  # rendered and encoded together; more would take much memory, some hundred bytes per token

Sides: TypeAlias = tuple[TokensAndLabels, ...]  # a row's ids and labels, of a pair on both sides


class ChatTemplate:
    """Replaces a column of chats by token ids and labels, lists of int64; picklable.

    Chats are rendered by transformers, by the tokenizer's chat template, and encoded without added tokens: what is
    before, between and after messages is what the template writes. Labels are the ids of the tokens that are trained,
    and -100 elsewhere; a token is trained if it overlaps what is trained of the text. A null stays a null.

    Args:
        tokenizer: a fast tokenizer of transformers, the path of its folder, or the name of a model on the Hugging Face
            Hub; later changes to it have no effect. With `template`, also a `tokenizers.Tokenizer`.
        messages: the column of chats: lists of structs with `role` and `content`, or the same as JSON text. Content is
            text, or a list of parts such as {"type": "text", "text": ...}. Null fields of structs are left out.
        tools: the column of the tools of each chat, as JSON schemas in the same two forms; None: there are none.
        mask: what is trained: "assistant", the text within the template's {% generation %} blocks; "last", what
            follows the header of the last message; "all", all tokens.
        template: another chat template, or the name of one of the tokenizer's.
        max_length: the most tokens of a row; None: no limit.
        long: longer rows: "error"; "drop" makes empty lists of them, which `pack` leaves out; "right" keeps the
            beginning, "left" the end.
        kwargs: variables of the template, such as {"enable_thinking": False}.
        prompt: the column of prompts, chats or text, instead of `messages`; nothing of them is trained.
        completion: the column of what follows the prompts, all of which is trained. Text is encoded by itself, with
            what the tokenizer adds before the prompt and after the completion.
        chosen: the column of preferred chats, or with `prompt` completions; ids and labels are `chosen_input_ids` and
            `chosen_labels`.
        rejected: the same of the others.

    Raises:
        OptionError: an argument is not one of the above, or the template has no {% generation %} block for
            mask="assistant".
        UnsupportedTypeError: the tokenizer is of another type, such as one in pure Python.
        MissingExtraError: transformers or jinja2 is not installed.
    """

    def __init__(
        self,
        tokenizer: Any,
        messages: str = "messages",
        *,
        tools: str | None = None,
        mask: str = "assistant",
        template: str | None = None,
        max_length: int | None = None,
        long: str = "error",
        kwargs: Mapping[str, Any] | None = None,
        prompt: str | None = None,
        completion: str | None = None,
        chosen: str | None = None,
        rejected: str | None = None,
    ) -> None:
        self._columns = ChatColumns(messages, tools, prompt, completion, chosen, rejected)
        self.mask, self.max_length, self.long = mask, max_length, long
        self._check(kwargs)
        made = _of_transformers(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else tokenizer
        self._source, _ = source_of(made, _WHO)
        # All of a completion is trained, as of the last answer.
        completes = self._columns.completes
        renderer = renderer_of(made, template, kwargs or {}, needed=not completes)
        self._marker = ChatMarker(renderer, "last" if completes else mask)
        probe(self._marker, made)
        keep_to_one_thread()

    @property
    def empties_rows(self) -> bool:
        """Whether it makes empty rows of some, which only `pack` leaves out."""
        return self.long == "drop"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with ids and labels in the place of the first column that is read.

        Raises:
            RowErrors: chats cannot be rendered, are too long, or nothing of them is trained.
            OptionError: a message has content that is no text.
            UnsupportedTypeError: a column holds neither chats nor text.
            SchemaMismatchError: another column has the name of an output.
        """
        rows: list[Sides | None] = [None] * batch.num_rows
        errors: dict[int, Exception] = {}
        for first in range(0, max(1, batch.num_rows), _ROWS):
            for row, texts, parts in self._encoded(batch.slice(first, _ROWS), first, errors):
                try:
                    rows[row] = self._cut(tuple(map(self._encoder.joined, texts, parts)))
                except ValueError as error:
                    errors[row] = error
        if errors:
            raise RowErrors(errors) from next(iter(errors.values()))
        return self._columns.replaced(batch, [_lists(rows, side) for side in range(len(self._columns.prefixes))])

    def _encoded(
        self, batch: pa.RecordBatch, first: int, errors: dict[int, Exception]
    ) -> Iterator[tuple[int, Sequence[ChatText], list[list[TokensAndLabels]]]]:
        """The number of each row, from `first` on, its texts, and their ids and labels; without nulls and `errors`."""
        sources = self._columns.sources(batch)
        texts: dict[int, Sequence[ChatText]] = {}
        for row in range(batch.num_rows):
            try:
                found = sources.texts(row, self._marker, first)
            except DataLoaderUtilsError:
                raise
            except ValueError as error:
                errors[first + row] = error
            else:
                if found is not None:
                    texts[first + row] = found
        encoded = iter(self._encoder([text for found in texts.values() for text in found]))
        return ((row, found, [next(encoded) for _ in found]) for row, found in texts.items())

    def _cut(self, sides: Sides) -> Sides:
        """The ids and labels of a row, with at most `max_length` tokens on each side."""
        longest, most = max(len(ids) for ids, _ in sides), self.max_length
        if most is not None and longest > most:
            if self.long == "error":
                raise ValueError(
                    f"{longest} tokens, more than max_length={most}: pass more, or long='drop', 'right' or 'left'"
                )
            if self.long == "drop":
                return tuple((ids[:0], labels[:0]) for ids, labels in sides)
            part = slice(most) if self.long == "right" else slice(-most, None)
            sides = tuple((ids[part], labels[part]) for ids, labels in sides)
        for _, labels in sides:
            if (labels == IGNORED).all():
                raise ValueError(
                    "no token is trained" if most is None or longest <= most else
                    f"no trained token is left of {longest} after long={self.long!r} with max_length={most}"
                )  # fmt: skip
        return sides

    @cached_property
    def _encoder(self) -> ChatEncoder:
        """This process's tokenizer, which no one else changes."""
        return ChatEncoder(loaded(self._source, True, _WHO), self._marker.renderer.variables.get("eos_token"))

    def _check(self, kwargs: Any) -> None:
        for name, value, choices in (("mask", self.mask, _MASKS), ("long", self.long, _LONG)):
            if value not in choices:
                raise OptionError(f"{_WHO}({name}={shown(value)}): expected one of {choices}.")
        if self._columns.completes and self.mask != _MASKS[0]:
            raise OptionError(
                f"{_WHO}(mask={self.mask!r}) with prompt: mask says what is trained of whole chats; of what follows a "
                "prompt, all is. Leave it out."
            )
        if self.max_length is not None and (type(self.max_length) is not int or self.max_length < 1):
            raise OptionError(f"{_WHO}(max_length={shown(self.max_length)}): expected a positive int, or None.")
        if self.max_length is None and self.long != "error":
            raise OptionError(f"{_WHO}(long={self.long!r}): expected max_length, the most tokens of a row, too.")
        if kwargs is not None and (not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs)):
            raise OptionError(f"{_WHO}(kwargs={shown(kwargs)}): expected a dict of the template's variables.")
        taken = [name for name in kwargs or () if name in _RESERVED]
        if taken:
            raise OptionError(f"{_WHO}(kwargs=): {taken[0]!r} is given to the template anyway.")

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the loaded tokenizer."""
        return {name: value for name, value in self.__dict__.items() if name != "_encoder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        keep_to_one_thread()

    def __repr__(self) -> str:
        return f"{_WHO}(..., {self._columns}, mask={self.mask!r}, max_length={self.max_length}, long={self.long!r})"


def _lists(rows: Sequence[Sides | None], side: int) -> tuple[pa.Array, pa.Array]:
    """The ids and the labels of one side of all rows, as lists of int64."""
    ids, labels = ([None if row is None else row[side][part] for row in rows] for part in range(2))
    return _list_array(ids), _list_array(labels)


def _list_array(rows: Sequence[Any]) -> pa.Array:
    """Arrays of int64, or None, as lists."""
    missing = np.array([row is None for row in rows], np.bool_)
    present = [row for row in rows if row is not None]
    offsets = np.cumsum([0, *(0 if row is None else len(row) for row in rows)])
    values = np.concatenate([np.empty(0, np.int64), *present])
    mask = pa.array(missing) if missing.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), mask=mask)


def _of_transformers(name: str | os.PathLike[str]) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(f"{_WHO} needs transformers: pip install 'torch-dataloader-utils[text]'") from error
    return AutoTokenizer.from_pretrained(os.fspath(name))
