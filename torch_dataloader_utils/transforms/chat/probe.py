"""What a chat template does with a small chat: found before any row is read, and told."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.transforms.chat.encoding import ChatText
from torch_dataloader_utils.transforms.chat.marking import ChatMarker
from torch_dataloader_utils.transforms.chat.rows import Chat

_LOG = logging.getLogger("torch_dataloader_utils")
_ANSWER = "In Norway."
_CHAT = (("user", "Where is Oslo?"), ("assistant", _ANSWER), ("user", "Thank you."))
_BLOCK = re.compile(r"\{%[-+]?\s*generation\b")
_DATED = "strftime_now"  # what templates call for the date


def probe(marker: ChatMarker, tokenizer: Any) -> None:
    """Check that a template says what is trained, and warn of what models would not learn.

    Raises:
        OptionError: it does not say what an assistant wrote.
    """
    if marker.mask == "assistant" and not _BLOCK.search(marker.renderer.template):
        raise _without_block(tokenizer)
    trained = next(_trained(marker), None)
    if marker.mask != "all" and trained and trained.rstrip().endswith(_ANSWER):
        _LOG.warning(
            "ChatTemplate: of an answer, the chat template marks the content, and not the token that ends it, so the "
            "model will not learn to stop. Pass a template= whose block has both"
        )
    if _is_dated(marker):
        _LOG.warning(
            "ChatTemplate: the chat template writes today's date, so that rows differ from day to day, and a pass that "
            "resumes on another day is not exact. Pass the date, as in kwargs={'date_string': '26 Jul 2024'}, or a "
            "template= with a fixed one"
        )


def _chats(messages: int) -> Iterator[Chat]:
    """Small chats: with text as content, and with parts, which templates of images expect."""
    chat = _CHAT[:messages]
    yield [{"role": role, "content": text} for role, text in chat]
    yield [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in chat]


def _trained(marker: ChatMarker) -> Iterator[str]:
    """The trained text of the small chats that the template renders with their content."""
    for chat in _chats(2 if marker.mask == "last" else 3):
        try:
            found = marker.chat(chat, None, 0)
        except ValueError:  # this template wants other chats; rows tell
            continue
        if any(_ANSWER in part.text for part in found.texts):
            yield _text_of(found)


def _text_of(found: ChatText) -> str:
    return "".join(
        part.text[first:last]
        for part in found.texts
        for first, last in (part.spans if part.spans is not None else [(0, len(part.text))])
    )


def _is_dated(marker: ChatMarker) -> bool:
    """Whether the template asks for the date, although these variables are given: it fails if there is none to ask."""
    renderer = marker.renderer
    if _DATED not in renderer.template or _DATED in renderer.variables:
        return False
    timeless = replace(renderer, variables={**renderer.variables, _DATED: "no function"})
    for chat in _chats(2):
        try:
            renderer.text(chat)
        except ValueError:
            continue
        try:
            timeless.text(chat)
        except ValueError:
            return True
    return False


def _without_block(tokenizer: Any) -> OptionError:
    other = (
        "trl.get_training_chat_template(tokenizer), which has them for this one"
        if _known_to_trl(tokenizer)
        else "a copy of it with {% generation %} and {% endgeneration %} around what an assistant writes: trl has some"
    )
    return OptionError(
        "ChatTemplate(mask='assistant'): the chat template has no {% generation %} block, which says what an assistant "
        f"wrote. Pass template={other}; mask='last', which trains the last message; or mask='all', which trains all "
        "tokens."
    )


def _known_to_trl(tokenizer: Any) -> bool:
    """Whether trl is installed, and has a template for training in the place of this one."""
    if find_spec("trl") is None:
        return False
    from trl import get_training_chat_template

    try:
        return get_training_chat_template(tokenizer) is not None
    except (ValueError, TypeError, AttributeError):  # none for it, or no tokenizer of transformers
        return False
