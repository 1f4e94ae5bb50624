"""Tokenizers made in a moment, chats for them, and which of their tokens are trained, by other means than ours."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNMARKED = re.sub(r"\{% (end)?generation %\}", "", CHATML)
TEXTS = [
    "Where is Oslo?",
    "In Norway.",
    "Thank you.",
    "You are welcome, grüß dich, 東京 👋🏽",
    "the user and the assistant",
]
USER, ASSISTANT = {"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}
CHAT = [USER, ASSISTANT, {"role": "user", "content": TEXTS[2]}, {"role": "assistant", "content": TEXTS[3]}]


@cache
def bytes_tokenizer(special: tuple[str, ...], begin: str = "") -> str:
    """A byte-level BPE that knows a few words and these special tokens, as JSON; it may put one before each text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(TEXTS * 3, trainer)
    made.add_special_tokens(list(special))
    if begin:
        pairs = [(begin, made.token_to_id(begin))]
        made.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=pairs)
    return str(made.to_str())


def special_tokens(template: str) -> tuple[str, ...]:
    """What looks like a special token in a template."""
    found = re.findall(r"<\|[^|<>\n]+\|>|<｜[^｜\n]+｜>|</?[a-z_]+>|\[/?[A-Z_]+\]", template)
    return tuple(sorted({*found, "<s>", "</s>"}))


def chat_tokenizer(template: Any = CHATML, *, begin: str = "", tokens: tuple[str, ...] | None = None) -> Any:
    """A tokenizer of transformers with this template, and these special tokens; None: those of the template."""
    transformers = pytest.importorskip("transformers")
    made = Tokenizer.from_str(bytes_tokenizer(tokens or special_tokens(str(template)), begin))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", chat_template=template
    )


def overlapping(tokenizer: Any, text: str, spans: Any) -> tuple[list[int], list[int]]:
    """The ids of a text and its labels, by the offsets of all tokens."""
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    labels = [
        number if any(start < last and end > first for first, last in spans) else -100
        for number, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True)
    ]
    return found["input_ids"], labels
