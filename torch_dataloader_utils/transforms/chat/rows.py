"""Chats as files hold them: rows of Arrow, or JSON as text, to the messages that a template renders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.schemas.merge import is_text, plain_type

Chat: TypeAlias = list[dict[str, Any]]
# The content of a row, made when it is asked for, so that what is wrong with a row is that row's error; None of a null.
ChatRow: TypeAlias = Callable[[], Any] | None


def chat_rows(column: pa.Array, name: str, who: str) -> list[ChatRow]:
    """The chats of a column, or the lists of tools.

    Raises:
        UnsupportedTypeError: the column holds neither lists of structs nor JSON as text.
    """
    if is_text(plain_type(column.type)):
        return [None if text is None else partial(_parsed, text, name) for text in column.to_pylist()]
    if not _is_chat(column.type):
        raise UnsupportedTypeError(
            f"{who}: column {name!r} holds {column.type}: expected lists of structs with role and content, or the same "
            "as JSON text."
        )
    return [
        None if each is None else partial(without_nulls, each) for each in column.to_pylist(maps_as_pydicts="strict")
    ]


def text_or_chat_rows(column: pa.Array, name: str, who: str) -> list[ChatRow]:
    """The texts of a column, or its chats; a text is not JSON.

    Raises:
        UnsupportedTypeError: the column holds neither.
    """
    if is_text(plain_type(column.type)):
        return [None if text is None else partial(str, text) for text in column.to_pylist()]
    if not _is_chat(column.type):
        raise UnsupportedTypeError(
            f"{who}: column {name!r} holds {column.type}: expected text, or lists of structs with role and content."
        )
    return chat_rows(column, name, who)


def checked_chat(chat: Any, row: int) -> Chat:
    """The messages of a chat, each with a role, and with text as its content if it has any.

    Args:
        chat: of a row.
        row: its number, for errors that no other row can avoid.

    Raises:
        ValueError: it is no list of messages, or empty.
        OptionError: a content is neither text nor parts of text, which another kind of data needs another tool for.
    """
    if not isinstance(chat, list) or not all(isinstance(message, dict) for message in chat):
        raise ValueError("the chat is no list of messages, each a dict with role and content")
    if not chat:
        raise ValueError("the chat has no message")
    for number, message in enumerate(chat):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"message {number} has no 'role', but the keys {list(message)}")
        _check_content(message.get("content"), row, number)
    return chat


def _is_chat(kind: pa.DataType) -> bool:
    lists = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    return any(is_kind(kind) for is_kind in lists) and (pt.is_struct(kind.value_type) or pt.is_map(kind.value_type))


def _check_content(content: Any, row: int, number: int) -> None:
    """Check that a message's content is text, or parts of text; None of a message that only calls tools."""
    if content is None or isinstance(content, str):
        return
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise OptionError(
                f"ChatTemplate: row {row} of the rows read has a message (number {number}) with content of type "
                f"{kind!r}: expected text, or a list of parts such as {{'type': 'text', 'text': ...}}. Leave out such "
                "rows by filters=, or render them in a transform of your own."
            )


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"column {name!r} is no JSON: {error}") from error


def without_nulls(value: Any) -> Any:
    """The same without keys that have no value: Arrow gives all structs all keys, so that a null says nothing."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
