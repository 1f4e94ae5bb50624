"""ChatTemplate on all templates that TRL ships: what transformers says of each chat, row by row."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transforms.chats import chat_tokenizer, overlapping, special_tokens
from torch_dataloader_utils import OptionError, RowErrors
from torch_dataloader_utils.transforms import ChatTemplate

trl = pytest.importorskip("trl")
transformers = pytest.importorskip("transformers")
rendering = pytest.importorskip("transformers.utils.chat_template_utils")

FOLDER = Path(trl.__file__).parent / "chat_templates"
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
MARKED = [name for name, text in TEMPLATES.items() if re.search(r"\{%-?\s*generation\s*-?%\}", text)]
TOKENS = special_tokens("".join(TEMPLATES.values()))
# Whose answers do not begin with what the template writes to ask for one.
REWRITING = ("deepseek", "nemotron")

ASKED = {"role": "user", "content": "Where is Oslo?"}
ANSWER = {"role": "assistant", "content": "In Norway."}
CALL = {"type": "function", "function": {"name": "population", "arguments": {"city": "Oslo"}}}


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


CHATS: list[list[dict[str, Any]]] = [
    [ASKED, ANSWER],
    [ASKED, ANSWER, {**ASKED, "content": "And Pune?"}, {**ANSWER, "content": "In India, 東京 no 👋🏽"}],
    [{"role": "system", "content": "Be brief."}, ASKED, ANSWER],
    [ASKED, {**ANSWER, "reasoning_content": "A city, the capital."}],
    [ASKED, {**ANSWER, "content": "<think>\nA city.\n</think>\n\nIn Norway."}, {"role": "user", "content": "Thanks"}],
    [ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "7"}, ANSWER],
    [{**ASKED, "content": [part("Where?")]}, {**ANSWER, "content": [part("Here.")]}],
    [ASKED],
]  # fmt: skip


@cache
def tokenizer_of(name: str) -> Any:
    return chat_tokenizer(TEMPLATES[name], tokens=TOKENS)


def expected(name: str, chat: list[dict[str, Any]]) -> tuple[list[int], list[int]] | None:
    """The ids and labels of a chat, by the spans of transformers and the offsets of all tokens; None: it is refused."""
    tokenizer = tokenizer_of(name)
    try:
        (text,), (spans,) = rendering.render_jinja_template(
            [chat],
            chat_template=TEMPLATES[name],
            return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
    except Exception:  # noqa: BLE001 (whatever a template raises)
        return None
    assert tokenizer.apply_chat_template(chat)["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
    ids, labels = overlapping(tokenizer, text, spans)
    return None if all(label == -100 for label in labels) else (ids, labels)


def found(transform: ChatTemplate, chats: list[Any]) -> list[tuple[list[int], list[int]] | None]:
    """The ids and labels of chats, each of which is a row; None of those that fail."""
    batch = pa.record_batch({"messages": list(map(json.dumps, chats))})
    try:
        result = transform(batch)
    except RowErrors as error:
        kept = [row for row in range(len(chats)) if row not in error.errors]
        rest = iter(found(transform, [chats[row] for row in kept]) if kept else [])
        return [next(rest) if row in kept else None for row in range(len(chats))]
    return list(zip(result["input_ids"].to_pylist(), result["labels"].to_pylist(), strict=True))


def test_there_are_many() -> None:
    assert len(TEMPLATES) > 60
    assert len(MARKED) > 30


@pytest.mark.parametrize("name", MARKED)
def test_labels_are_what_transformers_marks(name: str) -> None:
    rows = found(ChatTemplate(tokenizer_of(name)), CHATS)
    assert rows == [expected(name, chat) for chat in CHATS]
    assert sum(row is not None for row in rows) >= 1
    assert rows[-1] is None  # without an answer


@pytest.mark.parametrize("name", MARKED)
def test_masks_are_those_of_apply_chat_template(name: str) -> None:
    """Before version 5.24, it leaves out some bytes of a character of several with which an answer ends."""
    exact = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
    tokenizer = tokenizer_of(name)
    for chat, row in zip(CHATS, found(ChatTemplate(tokenizer), CHATS), strict=True):
        if row is None or not (exact or json.dumps(chat, ensure_ascii=False).isascii()):
            continue
        whole = tokenizer.apply_chat_template(chat, return_assistant_tokens_mask=True, return_dict=True)
        assert row[0] == whole["input_ids"]
        assert [int(label != -100) for label in row[1]] == whole["assistant_masks"]


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from([name for name in MARKED if "llava" not in name]),
    contents=st.lists(st.text(max_size=30), min_size=2, max_size=6),
)
def test_whatever_people_write(name: str, contents: list[str]) -> None:
    roles = ("user", "assistant")
    chat = [{"role": roles[turn % 2], "content": content} for turn, content in enumerate(contents)]
    assert found(ChatTemplate(tokenizer_of(name)), [chat]) == [expected(name, chat)]


@pytest.mark.parametrize("name", sorted(set(TEMPLATES) - set(MARKED)))
def test_a_template_without_a_block_names_ways_that_work(name: str) -> None:
    tokenizer = tokenizer_of(name)
    with pytest.raises(OptionError, match=r"no \{% generation %\} block") as caught:
        ChatTemplate(tokenizer)
    parts = "llava" in name
    chat = CHATS[6] if parts else CHATS[0]
    if "trl.get_training_chat_template(tokenizer)" in str(caught.value):
        template = trl.get_training_chat_template(tokenizer)
        assert found(ChatTemplate(tokenizer, template=template), [chat]) != [None]
    ((ids, labels),) = (row for row in found(ChatTemplate(tokenizer, mask="all"), [chat]) if row is not None)
    assert ids == labels == tokenizer.apply_chat_template(chat)["input_ids"]
    (last,) = found(ChatTemplate(tokenizer, mask="last"), [chat])
    assert (last is None) == name.startswith(REWRITING)
    if last is not None:
        header = tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        assert last == overlapping(tokenizer, text, [(len(header), len(text))])
