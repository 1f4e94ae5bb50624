"""Chats to text by a chat template, rendered by transformers itself, and which of its characters an assistant wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import MissingExtraError, OptionError
from torch_dataloader_utils.storage.locks import ForkLock
from torch_dataloader_utils.transforms.chat.rows import Chat

Span: TypeAlias = tuple[int, int]  # characters [first, last) of a text

# A template that transformers has compiled marks the answers of one chat at a time, whoever uses it in this process.
_MARKING = ForkLock()


@dataclass(frozen=True)
class ChatRenderer:
    """Renders chats; picklable.

    Attributes:
        template: of chats.
        template_of_tools: of chats with tools; mostly the same.
        variables: what the template knows besides messages and tools, such as `bos_token`.
    """

    template: str = field(repr=False)
    template_of_tools: str = field(repr=False)
    variables: Mapping[str, Any]

    def text(self, chat: Chat, tools: Any = None, *, asks: bool = False) -> str:
        """The text of a chat; if it `asks`, the header of the answer that is to come is added."""
        return self._rendered(chat, tools, add_generation_prompt=asks)[0]

    def marked(self, chat: Chat, tools: Any = None) -> tuple[str, list[Span]]:
        """The text of a chat, and what is within the template's {% generation %} blocks, in order."""
        with _MARKING:
            return self._rendered(chat, tools, return_assistant_tokens_mask=True)

    def _rendered(self, chat: Chat, tools: Any, **options: Any) -> tuple[str, list[Span]]:
        # As apply_chat_template does: a key without a value is none to a template.
        messages = [{key: value for key, value in message.items() if value is not None} for message in chat]
        template = self.template if tools is None else self.template_of_tools
        render = _render()
        try:
            (text,), spans = render([messages], tools, None, template, **options, **self.variables)
        except Exception as error:  # whatever a template raises, also on purpose
            raise ValueError(f"the chat template does not render it: {type(error).__name__}: {error}") from error
        return text, spans[0] if spans else []


_NONE = "the tokenizer has no chat template: pass template="
_REFUSING = f"{{{{ raise_exception({_NONE!r}) }}}}"


def renderer_of(
    tokenizer: Any, template: str | None, variables: Mapping[str, Any], *, needed: bool = True
) -> ChatRenderer:
    """The renderer of a tokenizer's chats.

    Args:
        tokenizer: of transformers; or any, with a template.
        template: the template, or the name of one of the tokenizer's; None for its own.
        variables: what the template knows besides.
        needed: whether all rows are chats; otherwise a chat is an error if there is no template.

    Raises:
        OptionError: the tokenizer has no template, and it is needed.
    """
    known = getattr(tokenizer, "special_tokens_map", {})
    if not needed and template is None and not getattr(tokenizer, "chat_template", None):
        template = _REFUSING
    find = getattr(tokenizer, "get_chat_template", None)
    if find is None and template is None:
        raise OptionError(
            f"ChatTemplate: a {type(tokenizer).__name__} has no chat template. Pass template=, or a tokenizer of "
            "transformers that has one."
        )
    asked: tuple[Any, Any] = None, [{}]  # without tools, and with some
    try:
        found = [template if find is None else find(template, tools) for tools in asked]
    except ValueError as error:
        raise OptionError(f"ChatTemplate: {_NONE}. ({error})") from error
    return ChatRenderer(str(found[0]), str(found[1]), {**known, **variables})


def _render() -> Callable[..., Any]:
    """The function of transformers that renders chats. It does not import torch.

    Raises:
        MissingExtraError: transformers is not installed, or too old.
    """
    try:
        import jinja2  # noqa: F401 - what transformers imports when it first renders
        from transformers.utils.chat_template_utils import render_jinja_template
    except ImportError as error:
        raise MissingExtraError(
            "ChatTemplate needs transformers (5 or newer) and jinja2: pip install 'torch-dataloader-utils[text]'"
        ) from error
    return render_jinja_template  # type: ignore[no-any-return]
