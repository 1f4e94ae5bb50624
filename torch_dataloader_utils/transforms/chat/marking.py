"""Which text of a chat is trained: what an assistant wrote, the last answer, a completion, or all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.transforms.chat.encoding import ChatText, MarkedText
from torch_dataloader_utils.transforms.chat.rendering import ChatRenderer
from torch_dataloader_utils.transforms.chat.rows import Chat, checked_chat


@dataclass(frozen=True)
class ChatMarker:
    """Renders the chats of rows, and marks what is trained of them; picklable.

    Attributes:
        renderer: renders them.
        mask: what is trained of a chat: "assistant", "last" or "all".
    """

    renderer: ChatRenderer
    mask: str

    def chat(self, content: Any, tools: Any, row: int) -> ChatText:
        """A whole chat.

        Raises:
            ValueError: it is none, the template does not render it, or nothing of it is trained.
        """
        chat, tools = checked_chat(content, row), _checked_tools(tools)
        if self.mask == "all":
            return ChatText((MarkedText(self.renderer.text(chat, tools), None),))
        if not any(message["role"] == "assistant" for message in chat):
            raise ValueError("no message has the role 'assistant', so that no token is trained")
        if self.mask == "last":
            return self._last(chat, tools)
        return ChatText((MarkedText(*self.renderer.marked(chat, tools)),))

    def completion(self, prompt: Any, completion: Any, tools: Any, row: int) -> ChatText:
        """A prompt and what follows it, which is trained: two texts, or two chats.

        Raises:
            ValueError: they are no two chats, or the template does not render them.
        """
        if isinstance(prompt, str) and isinstance(completion, str):
            return ChatText((MarkedText(prompt, ()), MarkedText(completion, None)), framed=True)
        if isinstance(prompt, str) or isinstance(completion, str):
            raise ValueError("one of prompt and completion is text, and the other a chat: expected two of a kind")
        before, answer = checked_chat(prompt, row), checked_chat(completion, row)
        others = [message["role"] for message in answer if message["role"] != "assistant"]
        if others:
            raise ValueError(
                f"the completion has a message of the role {others[0]!r}, which would be trained, too: put chats with "
                "several turns into one column, for messages="
            )
        return self._after(before, [*before, *answer], _checked_tools(tools))

    def _last(self, chat: Chat, tools: Any) -> ChatText:
        if chat[-1]["role"] != "assistant":
            raise ValueError(f"the last message has the role {chat[-1]['role']!r}: expected an answer")
        if len(chat) == 1:
            raise ValueError("no message is before the answer")
        return self._after(chat[:-1], chat, tools)

    def _after(self, before: Chat, chat: Chat, tools: Any) -> ChatText:
        """A chat of which all is trained that follows these messages, and the header of the answer."""
        header, text = self.renderer.text(before, tools, asks=True), self.renderer.text(chat, tools)
        if not text.startswith(header):
            raise ValueError(
                "the chat template writes what is before the answer in another way once the answer is there, so that "
                "where it begins is not known: use a template with {% generation %} blocks, and mask='assistant'"
            )
        return ChatText((MarkedText(text, [(len(header), len(text))]),))


def _checked_tools(tools: Any) -> Any:
    """The tools of a chat; None if there is none."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"expected a list of tools, each a dict with its JSON schema, not {type(tools).__name__}")
    return tools or None
