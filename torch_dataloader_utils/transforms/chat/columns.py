"""The columns of chats, prompts and pairs, and those of ids and labels in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import pyarrow as pa

from torch_dataloader_utils.errors import OptionError, SchemaMismatchError
from torch_dataloader_utils.options.packing import LABELS, SIDES
from torch_dataloader_utils.transforms.chat.encoding import ChatText
from torch_dataloader_utils.transforms.chat.marking import ChatMarker
from torch_dataloader_utils.transforms.chat.rows import ChatRow, chat_rows, text_or_chat_rows
from torch_dataloader_utils.transforms.columns import check_column, place_of

_WHO = "ChatTemplate"
_INSTEAD = ("prompt", "completion", "chosen", "rejected")  # of messages
_FORMS = (["prompt", "completion"], ["chosen", "rejected"], ["prompt", "chosen", "rejected"])


@dataclass(frozen=True)
class ChatColumns:
    """Which columns hold what; see `ChatTemplate`."""

    messages: str
    tools: str | None
    prompt: str | None
    completion: str | None
    chosen: str | None
    rejected: str | None

    def __post_init__(self) -> None:
        for name in self.given:
            check_column(name, _WHO)
        named = [word for word in _INSTEAD if getattr(self, word) is not None]
        if named and named not in _FORMS:
            forms = ", ".join(" and ".join(form) for form in _FORMS)
            raise OptionError(f"{_WHO}: {' and '.join(named)} without others: expected one of: {forms}; or messages.")
        if len(set(self.given)) < len(self.given):
            raise OptionError(f"{_WHO}: one column is named twice: {list(self.given)}.")

    @property
    def given(self) -> tuple[str, ...]:
        """The columns that are read."""
        instead = [getattr(self, word) for word in _INSTEAD]
        contents = [self.messages] if instead == [None] * len(instead) else instead
        return tuple(name for name in (*contents, self.tools) if name is not None)

    @property
    def completes(self) -> bool:
        """Whether what is trained follows a prompt of its own column."""
        return self.prompt is not None

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How the names of outputs begin, of each side."""
        return ("",) if self.chosen is None else SIDES

    @property
    def contents(self) -> tuple[str, ...]:
        """The columns whose tokens are trained, of each side."""
        if self.chosen is not None and self.rejected is not None:
            return self.chosen, self.rejected
        return (self.messages if self.completion is None else self.completion,)

    def sources(self, batch: pa.RecordBatch) -> ChatSources:
        """The content of the columns.

        Raises:
            UnsupportedTypeError: a column holds neither chats nor text, or the rows are not a record batch.
            ColumnNotFoundError: there is no such column.
        """
        columns = {name: batch.column(place_of(batch, name, _WHO)) for name in self.given}
        read = text_or_chat_rows if self.completes else chat_rows
        return ChatSources(
            tuple(read(columns[name], name, _WHO) for name in self.contents),
            None if self.prompt is None else read(columns[self.prompt], self.prompt, _WHO),
            None if self.tools is None else chat_rows(columns[self.tools], self.tools, _WHO),
        )

    def replaced(self, batch: pa.RecordBatch, sides: Sequence[tuple[pa.Array, pa.Array]]) -> pa.RecordBatch:
        """The batch with ids and labels of each side in the place of the columns that were read.

        Raises:
            SchemaMismatchError: another column has the name of an output.
        """
        made = {
            prefix + name: array
            for prefix, arrays in zip(self.prefixes, sides, strict=True)
            for name, array in zip(("input_ids", LABELS), arrays, strict=True)
        }
        first = min(batch.schema.get_field_index(name) for name in self.given)
        columns: list[tuple[pa.Field, pa.Array]] = []
        for place, (item, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
            if place == first:
                columns += [(pa.field(name, array.type), array) for name, array in made.items()]
            if item.name in self.given:
                continue
            if item.name in made:
                raise SchemaMismatchError(
                    f"{_WHO}: the rows already have a column {item.name!r}: leave it out by columns=, or rename it."
                )
            columns.append((item, column))
        kinds, arrays = zip(*columns, strict=True)
        return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(kinds))

    def __repr__(self) -> str:
        return ", ".join(
            f"{item.name}={getattr(self, item.name)!r}"
            for item in fields(self)
            if getattr(self, item.name) in self.given
        )


@dataclass(frozen=True)
class ChatSources:
    """The content of the columns, row by row.

    Attributes:
        contents: of each side.
        prompts: of both sides; None if there is no such column.
        tools: of both sides; None if there is no such column.
    """

    contents: tuple[list[ChatRow], ...]
    prompts: list[ChatRow] | None
    tools: list[ChatRow] | None

    def texts(self, row: int, marker: ChatMarker, first: int) -> list[ChatText] | None:
        """The texts of a row, of each side; None if a column has a null there, other than that of tools.

        Args:
            row: its number.
            marker: marks what is trained.
            first: how many rows the transform was given before row 0.

        Raises:
            ValueError: the row holds no chat, or the template does not render it.
        """
        contents = [rows[row] for rows in self.contents]
        prompt = None if self.prompts is None else self.prompts[row]
        if None in contents or (prompt is None and self.prompts is not None):
            return None
        given = None if self.tools is None else self.tools[row]
        tools = None if given is None else given()
        if prompt is None:
            return [marker.chat(content(), tools, first + row) for content in contents if content is not None]
        before = prompt()
        return [marker.completion(before, content(), tools, first + row) for content in contents if content is not None]
