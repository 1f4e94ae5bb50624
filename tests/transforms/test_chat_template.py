"""What ChatTemplate makes of chats: which tokens, which of them are trained, and what is an error, at which row."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.resume.helpers import batches, pass_with_states
from tests.transforms.chats import (
    ASSISTANT,
    CHAT,
    CHATML,
    TEXTS,
    UNMARKED,
    USER,
    bytes_tokenizer,
    chat_tokenizer,
    overlapping,
    special_tokens,
)
from torch_dataloader_utils import (
    ColumnNotFoundError,
    OptionError,
    Pack,
    RowErrors,
    SchemaMismatchError,
    StructuredDataset,
    Transform,
    UnsupportedTypeError,
    combine,
)
from torch_dataloader_utils.transforms import ChatTemplate

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def rows_of(chats: Any, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"messages": chats, **columns})


def made(chats: Any, **options: Any) -> list[tuple[list[int], list[int]]]:
    """The ids and labels of these chats."""
    transform = ChatTemplate(options.pop("tokenizer", None) or chat_tokenizer(), **options)
    found = transform(rows_of(chats))
    return list(zip(found["input_ids"].to_pylist(), found["labels"].to_pylist(), strict=True))


def trained(tokenizer: Any, labels: list[int]) -> str:
    return str(tokenizer.decode([label for label in labels if label != -100]))


def test_answers_are_trained_with_the_tokens_that_end_them() -> None:
    tokenizer = chat_tokenizer()
    ((ids, labels),) = made([CHAT])
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert trained(tokenizer, labels) == f"{TEXTS[1]}<|im_end|>{TEXTS[3]}<|im_end|>"
    assert all(label in (-100, number) for number, label in zip(ids, labels, strict=True))


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text(max_size=20)), min_size=1, max_size=6)
)
def test_a_token_is_trained_if_it_overlaps_a_span(turns: list[tuple[str, str]]) -> None:
    chat = [*({"role": role, "content": text} for role, text in turns), ASSISTANT]
    tokenizer = chat_tokenizer()
    text, spans = "", []
    for message in chat:
        header = f"<|im_start|>{message['role']}\n"
        if message["role"] == "assistant":
            first = len(text) + len(header)
            spans.append((first, first + len(message["content"] + "<|im_end|>")))
        text += f"{header}{message['content']}<|im_end|>\n"
    assert made([chat]) == [overlapping(tokenizer, text, spans)]


@pytest.mark.parametrize("mask", ["last", "all"])
def test_masks_that_need_no_block(mask: str) -> None:
    tokenizer = chat_tokenizer(UNMARKED)
    ((ids, labels),) = made([CHAT], tokenizer=tokenizer, mask=mask)
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert tokenizer.decode(ids) == text
    assert trained(tokenizer, labels) == (f"{TEXTS[3]}<|im_end|>\n" if mask == "last" else text)


def test_what_the_template_writes_first_is_the_only_beginning() -> None:
    tokenizer = chat_tokenizer("{{ bos_token }}" + CHATML, begin="<s>")
    ((ids, _),) = made([CHAT], tokenizer=tokenizer)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids == tokenizer.apply_chat_template(CHAT)["input_ids"]


def test_chats_as_structs_and_as_text_are_the_same() -> None:
    assert made([json.dumps(CHAT), json.dumps([USER, ASSISTANT])]) == made([CHAT, [USER, ASSISTANT]])


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"a": 1}}}]
TOOLED = CHATML + "{% if tools %}{{ tools | tojson }}{% endif %}"


def test_keys_that_only_other_rows_have_are_left_out() -> None:
    """Arrow gives all structs all keys: a template must not see those of other rows, however deep."""
    calls = [{"name": "f", "arguments": {"a": 1}}], [{"name": "g", "arguments": {"b": {"c": [{"d": 2}, {"e": 3}]}}}]
    template = CHATML.replace("{% generation %}", "{% generation %}{{ message['tool_calls'] | tojson }}", 1)
    tokenizer = chat_tokenizer(template)
    chats = [[USER, {"role": "assistant", "content": "x", "tool_calls": call}] for call in calls]
    found = made(chats, tokenizer=tokenizer)
    assert [ids for ids, _ in found] == [tokenizer.apply_chat_template(chat)["input_ids"] for chat in chats]
    assert found == made(list(map(json.dumps, chats)), tokenizer=tokenizer)
    nulls = [json.dumps([USER, {"role": "assistant", "content": "x", "tool_calls": [{"a": None}]}])]
    ((ids, _),) = made(nulls, tokenizer=tokenizer)
    assert '[{"a": null}]' in tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["structs", "text"])
def test_tools_have_a_column(kind: str) -> None:
    tokenizer = chat_tokenizer(TOOLED)
    tools: Any = [TOOLS, None, []]
    given = tools if kind == "structs" else [None if each is None else json.dumps(each) for each in tools]
    found = ChatTemplate(tokenizer, tools="tools")(rows_of([CHAT] * 3, tools=given))
    assert found.schema.names == ["input_ids", "labels"]
    expected = [tokenizer.apply_chat_template(CHAT, tools=each or None)["input_ids"] for each in tools]
    assert found["input_ids"].to_pylist() == expected
    assert len(expected[0]) > len(expected[1]) == len(expected[2])


def test_a_template_among_several_is_that_of_chats_or_of_tools() -> None:
    named = {"default": CHATML, "tool_use": TOOLED, "other": CHATML + "!"}
    tokenizer = chat_tokenizer(named)
    found = ChatTemplate(tokenizer, tools="tools")(rows_of([CHAT, CHAT], tools=[TOOLS, None]))["input_ids"]
    assert [tokenizer.decode(ids)[-2:] for ids in found.to_pylist()] == ["}]", ">\n"]
    ((ids, _),) = made([CHAT], tokenizer=tokenizer, template="other")
    assert tokenizer.decode(ids).endswith("\n!")


def test_variables_of_the_template() -> None:
    tokenizer = chat_tokenizer(CHATML + "{{ mood }}")
    ((ids, _),) = made([CHAT], tokenizer=tokenizer, kwargs={"mood": "calm"})
    assert tokenizer.decode(ids).endswith("\ncalm")


def test_other_columns_stay_and_nulls_are_nulls() -> None:
    batch = pa.record_batch({"id": [1, 2], "messages": pa.array([CHAT, None]), "url": ["a", "b"]})
    found = ChatTemplate(chat_tokenizer())(batch)
    assert found.schema.names == ["id", "input_ids", "labels", "url"]
    assert found.schema.types[1:3] == [pa.list_(pa.int64())] * 2
    assert [row is None for row in found["input_ids"].to_pylist()] == [False, True]
    assert found["labels"].null_count == 1
    assert ChatTemplate(chat_tokenizer())(batch.slice(0, 0)).schema == found.schema


# -------------------------------------------------------------------------------------------------------------- long


def test_long_chats_are_cut_after_they_are_encoded() -> None:
    ((ids, labels),) = made([CHAT])
    most = len(ids) - 5
    assert made([CHAT], max_length=len(ids)) == [(ids, labels)]
    assert made([CHAT], max_length=most, long="right") == [(ids[:most], labels[:most])]
    assert made([CHAT], max_length=most, long="left") == [(ids[-most:], labels[-most:])]
    assert made([CHAT, [USER, ASSISTANT]], max_length=most, long="drop") == [([], []), *made([[USER, ASSISTANT]])]
    with pytest.raises(RowErrors, match=rf"row 1: ValueError: {len(ids)} tokens, more than max_length={most}"):
        made([[USER, ASSISTANT], CHAT], max_length=most)


def test_a_row_of_which_no_trained_token_is_left_fails() -> None:
    with pytest.raises(RowErrors, match=r"row 0: ValueError: no trained token is left of \d+ after long='right'"):
        made([CHAT], max_length=4, long="right")
    silent = chat_tokenizer(CHATML.replace("{{ message['content'] }}<|im_end|>{% endgen", "{% endgen", 1))
    with pytest.raises(RowErrors, match="no token is trained"):
        made([CHAT], tokenizer=silent)


def test_dropped_chats_are_in_no_sequence(tmp_path: Path) -> None:
    chats = [CHAT if row % 3 else [USER, ASSISTANT] for row in range(40)]
    pq.write_table(pa.table({"messages": chats}), tmp_path / "0.parquet", row_group_size=7)
    short = made([[USER, ASSISTANT]])[0][0]
    transform = ChatTemplate(chat_tokenizer(), max_length=len(short), long="drop")
    options: dict[str, Any] = {"transform": transform, "batch_size": 2, "num_ranks": 1, "rank": 0}
    with pytest.raises(OptionError, match=r"ChatTemplate\(long='drop'\) with pack=None: .* Use pack=n") as caught:
        StructuredDataset.create_dataloader(tmp_path, **options)
    part = {"source": tmp_path, "transform": transform}
    with pytest.raises(OptionError, match="only pack leaves out; give pack to combine"):
        combine({"chats": part}, num_ranks=1, rank=0)
    assert len(list(combine({"chats": part}, pack=64, num_ranks=1, rank=0)))
    for remedy in caught.value.remedies:
        if remedy.given:
            loader = StructuredDataset.create_dataloader(tmp_path, **remedy.applied(options))[0]
            held = sum(int((batch["document_ids"] >= 0).sum()) for batch in loader)
            assert held == len(short) * sum(len(chat) == 2 for chat in chats)


# ----------------------------------------------------------------------------------------- prompts, completions, pairs


def test_prompts_and_completions_of_text_are_encoded_apart() -> None:
    tokenizer = chat_tokenizer(None, begin="<s>")
    transform = ChatTemplate(tokenizer, prompt="prompt", completion="completion")
    batch = pa.record_batch({"prompt": ["the us", "In"], "completion": ["er", " Norway.</s>"], "id": [1, 2]})
    found = transform(batch)
    assert found.schema.names == ["input_ids", "labels", "id"]
    for row, (prompt, completion) in enumerate([("the us", "er"), ("In", " Norway.</s>")]):
        before, after = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, completion))
        assert found["input_ids"][row].as_py() == [tokenizer.bos_token_id, *before, *after]
        assert found["labels"][row].as_py() == [-100] * (1 + len(before)) + after
    assert tokenizer("the user", add_special_tokens=False)["input_ids"] != found["input_ids"][0].as_py()[1:]


def test_a_prompt_that_has_the_beginning_itself_is_an_error_at_its_row() -> None:
    transform = ChatTemplate(chat_tokenizer(None, begin="<s>"), prompt="prompt", completion="completion")
    with pytest.raises(RowErrors, match="1 row failed: row 1: ValueError: the prompt begins with '<s>'"):
        transform(pa.record_batch({"prompt": ["a", "<s>a"], "completion": ["</s>", "</s>"]}))


def test_a_completion_without_an_end_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    transform = ChatTemplate(chat_tokenizer(None), prompt="prompt", completion="completion")
    for completion, told in (("x</s>", 0), ("x", 1), ("y", 1)):
        transform(pa.record_batch({"prompt": ["a"], "completion": [completion]}))
        assert len([record for record in caplog.records if "does not end with </s>" in record.message]) == told


def test_prompts_and_completions_of_chats_are_one_chat() -> None:
    tokenizer = chat_tokenizer(UNMARKED)
    transform = ChatTemplate(tokenizer, prompt="before", completion="after")
    found = transform(pa.record_batch({"before": [CHAT[:3]], "after": [CHAT[3:]]}))
    assert found["input_ids"].to_pylist() == [tokenizer.apply_chat_template(CHAT)["input_ids"]]
    assert trained(tokenizer, found["labels"][0].as_py()) == f"{TEXTS[3]}<|im_end|>\n"


@pytest.mark.parametrize("prompted", [False, True])
def test_pairs_have_four_columns_and_are_packed_together(tmp_path: Path, prompted: bool) -> None:
    rows = [(CHAT[:3], CHAT[3:], [{"role": "assistant", "content": f"No {row}."}]) for row in range(30)]
    if prompted:
        columns = dict(zip(("prompt", "chosen", "rejected"), map(list, zip(*rows, strict=True)), strict=True))
        options = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    else:
        columns = {"yes": [a + b for a, b, _ in rows], "no": [a + c for a, _, c in rows]}
        options = {"chosen": "yes", "rejected": "no", "mask": "last"}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet", row_group_size=8)
    tokenizer = chat_tokenizer()
    loader = StructuredDataset.create_dataloader(
        tmp_path,
        transform=ChatTemplate(tokenizer, **options),
        pack=Pack(256, together=True),
        batch_size=2,
        num_ranks=1,
        rank=0,
    )[0]
    seen = []
    for batch in loader:
        sides = [_documents(batch, side) for side in ("chosen_", "rejected_")]
        for (ids, labels), (other, other_labels) in zip(*sides, strict=True):
            assert tokenizer.decode(ids) == tokenizer.apply_chat_template(CHAT, tokenize=False)
            assert trained(tokenizer, labels) == f"{TEXTS[3]}<|im_end|>\n"
            assert trained(tokenizer, other_labels).endswith("<|im_end|>\n")
            seen.append(tokenizer.decode(other))
    assert sorted(seen) == sorted(tokenizer.apply_chat_template(a + c, tokenize=False) for a, _, c in rows)


def _documents(batch: Any, side: str) -> list[tuple[list[int], list[int]]]:
    """The ids and labels of each document of a side."""
    ids, labels, numbers = (batch[side + name] for name in ("input_ids", "labels", "document_ids"))
    return [
        (ids[row][numbers[row] == number].tolist(), labels[row][numbers[row] == number].tolist())
        for row in range(len(ids))
        for number in range(int(numbers[row].max()) + 1)
    ]


# ------------------------------------------------------------------------------------------------------ what is wrong


def test_rows_that_fail_are_numbered_through() -> None:
    chats = [[USER] if row in (3, 40, 99) else CHAT for row in range(100)]
    with pytest.raises(RowErrors, match=r"3 rows failed: row 3: .*; row 40: .*; row 99: ") as caught:
        made(chats)
    assert list(caught.value.errors) == [3, 40, 99]
    kept = [row for row in range(100) if row not in caught.value.errors]
    assert made([chats[row] for row in kept]) == made([CHAT]) * 97
    parts = [json.dumps(CHAT)] * 50 + [json.dumps([{"role": "user", "content": 7}])]
    with pytest.raises(OptionError, match="row 50 of the rows read"):
        made(parts)


def test_all_rows_that_fail_are_named() -> None:
    parts = [{"type": "text", "text": TEXTS[0]}]
    chats = [
        CHAT,
        [],
        [USER],
        [{"role": "user", "content": parts}, USER, ASSISTANT],
        [{"content": "no role"}],
        {"role": "user"},
    ]
    with pytest.raises(RowErrors) as caught:
        made([*map(json.dumps, chats), "no JSON"])
    told = {row: str(error) for row, error in caught.value.errors.items()}
    assert list(told) == [1, 2, 4, 5, 6]
    assert "no message" in told[1]
    assert "role 'assistant'" in told[2]
    assert "message 0 has no 'role'" in told[4]
    assert "no list of messages" in told[5]
    assert "column 'messages' is no JSON" in told[6]
    assert pickle.loads(pickle.dumps(caught.value)).errors.keys() == told.keys()


def test_what_a_template_refuses_is_an_error_of_its_row() -> None:
    picky = CHATML + "{% if messages[0]['role'] == 'user' %}{{ raise_exception('no system turn') }}{% endif %}"
    system = {"role": "system", "content": "Be brief."}
    with pytest.raises(RowErrors, match=r"1 row failed: row 1: .* does not render it: TemplateError: no system turn"):
        made([[system, USER, ASSISTANT], CHAT], tokenizer=chat_tokenizer(picky))


def test_an_answer_that_changes_what_is_before_it_has_no_known_beginning() -> None:
    rewriting = UNMARKED + "{% if not add_generation_prompt %}!{% endif %}"
    moving = UNMARKED.replace("<|im_start|>", "{{ messages | length }}<|im_start|>", 1)
    made([CHAT], tokenizer=chat_tokenizer(rewriting), mask="last")
    with pytest.raises(RowErrors, match="where it begins is not known"):
        made([CHAT], tokenizer=chat_tokenizer(moving), mask="last")
    for chat, message in (
        ([USER], "no message has the role"),
        ([ASSISTANT, USER], "the last message has the role"),
        ([ASSISTANT], "no message is before the answer"),
    ):
        with pytest.raises(RowErrors, match=message):
            made([chat], mask="last")


@pytest.mark.parametrize("content", [[{"type": "image", "text": "x"}], 7, [{"type": "text"}]])
def test_other_content_than_text_is_an_error_whatever_becomes_of_rows(content: Any) -> None:
    chats = [json.dumps(CHAT), json.dumps([{"role": "user", "content": content}])]
    with pytest.raises(OptionError, match=r"row 1 of the rows read has a message \(number 0\) with content of type"):
        made(chats)


def test_completions_that_cannot_be_trained_whole_are_errors() -> None:
    transform = ChatTemplate(chat_tokenizer(), prompt="prompt", completion="completion")

    def fails(prompt: Any, completion: Any, message: str) -> None:
        with pytest.raises(RowErrors, match=message):
            transform(pa.record_batch({"prompt": [prompt], "completion": [completion]}))

    fails("text", [ASSISTANT], "one of prompt and completion is text")
    fails([USER], [ASSISTANT, USER], "a message of the role 'user'")
    plain = ChatTemplate(chat_tokenizer(None), prompt="prompt", completion="completion")
    with pytest.raises(RowErrors, match="the tokenizer has no chat template: pass template="):
        plain(pa.record_batch({"prompt": [[USER]], "completion": [[ASSISTANT]]}))


def test_columns_that_hold_no_chats_are_refused() -> None:
    transform = ChatTemplate(chat_tokenizer())
    with pytest.raises(UnsupportedTypeError, match="column 'messages' holds int64: expected lists of structs"):
        transform(rows_of([1, 2]))
    with pytest.raises(ColumnNotFoundError, match="reads column 'messages'"):
        transform(pa.record_batch({"chat": [CHAT]}))
    with pytest.raises(SchemaMismatchError, match="already have a column 'labels'"):
        transform(rows_of([CHAT], labels=[1]))
    with pytest.raises(UnsupportedTypeError, match="column 'a' holds int64: expected text, or lists"):
        ChatTemplate(chat_tokenizer(), prompt="a", completion="b")(pa.record_batch({"a": [1], "b": ["x"]}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": "user"}, r"mask='user'\): expected one of"),
        ({"long": "left"}, r"long='left'\): expected max_length"),
        ({"max_length": 0}, "expected a positive int"),
        ({"max_length": True}, "expected a positive int"),
        ({"messages": ""}, "expected its name"),
        ({"kwargs": [1]}, "expected a dict"),
        ({"kwargs": {"messages": []}}, "'messages' is given to the template anyway"),
        ({"prompt": "p"}, "prompt without others: expected one of: prompt and completion, chosen and rejected, "),
        ({"completion": "c"}, "completion without others"),
        ({"chosen": "c"}, "chosen without others"),
        ({"prompt": "p", "completion": "c", "chosen": "a", "rejected": "b"}, "expected one of"),
        ({"prompt": "p", "completion": "c", "mask": "all"}, r"mask='all'\) with prompt"),
        ({"chosen": "a", "rejected": "a"}, "one column is named twice"),
        ({"template": "{% for %}"}, r"no \{% generation %\} block"),
    ],
    ids=str,
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ChatTemplate(chat_tokenizer(), **options)


def test_tokenizers_that_cannot_be_used() -> None:
    with pytest.raises(UnsupportedTypeError, match="fast tokenizer"):
        ChatTemplate(str.split, template=CHATML)
    with pytest.raises(OptionError, match=r"the tokenizer has no chat template: pass template="):
        ChatTemplate(chat_tokenizer(None))
    alone = Tokenizer.from_str(bytes_tokenizer(special_tokens(CHATML)))
    with pytest.raises(OptionError, match="a Tokenizer has no chat template"):
        ChatTemplate(alone)
    assert made([CHAT], tokenizer=alone, template=CHATML) == made([CHAT])


# ------------------------------------------------------------------------------------- what a small chat tells before


def test_a_template_without_a_block_is_an_error_with_ways_that_work() -> None:
    tokenizer = chat_tokenizer(UNMARKED)
    with pytest.raises(OptionError, match=r"no \{% generation %\} block.*mask='last'.*mask='all'"):
        ChatTemplate(tokenizer)
    assert made([CHAT], tokenizer=tokenizer, template=CHATML) == made([CHAT])


def warnings_of(caplog: pytest.LogCaptureFixture, template: str, **options: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="torch_dataloader_utils"):
        ChatTemplate(chat_tokenizer(template), **options)
    return [record.getMessage() for record in caplog.records]


def test_an_answer_without_its_end_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    endless = CHATML.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
    (message,) = warnings_of(caplog, endless)
    assert "will not learn to stop" in message
    assert warnings_of(caplog, CHATML) == []
    assert warnings_of(caplog, endless, mask="all") == []
    parts = CHATML.replace("message['content']", "message['content'][0]['text']")
    assert warnings_of(caplog, parts) == []
    assert "stop" in warnings_of(caplog, parts.replace("<|im_end|>{% endgen", "{% endgen"))[0]
    unended = UNMARKED.replace("<|im_end|>", "")
    assert "stop" in warnings_of(caplog, unended, mask="last")[0]


def test_the_date_of_today_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    dated = "{% if date_string is not defined %}{% set date_string = strftime_now('%d') %}{% endif %}" + CHATML
    assert "today's date" in warnings_of(caplog, dated)[0]
    assert warnings_of(caplog, dated, kwargs={"date_string": "26 Jul 2024"}) == []
    assert warnings_of(caplog, "{# strftime_now #}" + CHATML) == []


# ------------------------------------------------------------------------------------------------- threads and workers


def test_threads_share_a_template() -> None:
    """That of transformers marks one chat at a time, and raises for a second one."""
    transforms = [ChatTemplate(chat_tokenizer()) for _ in range(2)]
    batch = rows_of([CHAT, [USER, ASSISTANT]] * 60)
    expected = transforms[0](batch)
    with ThreadPoolExecutor(8) as pool:
        assert all(found.equals(expected) for found in pool.map(lambda i: transforms[i % 2](batch), range(16)))


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_workers_deliver_the_same_and_resume_at_every_step(tmp_path: Path, mode: Any) -> None:
    chats = [[USER, {"role": "assistant", "content": f"Number {row}, {'x' * (row % 7)}."}] for row in range(30)]
    pq.write_table(pa.table({"messages": chats}), tmp_path / "0.parquet", row_group_size=8)
    transform = ChatTemplate(chat_tokenizer())

    def loader(**options: Any) -> Any:
        given = {"num_workers": 2, "worker_mode": mode, "num_ranks": 1, "rank": 0, **options}
        pack = Pack(128, keys="hf")
        return StructuredDataset.create_dataloader(tmp_path, transform=transform, pack=pack, batch_size=2, **given)[0]

    whole, states = pass_with_states(loader())
    assert whole == batches(loader(worker_mode="threads"))
    assert len(whole) > 3
    for step in range(0, len(whole), 1 if mode == "threads" else 3):
        resumed = loader()
        resumed.load_state_dict(states[step])
        assert batches(resumed) == whole[step:]
        resumed.dataset.close()


def test_errors_of_workers_name_file_and_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"messages": [CHAT, [USER]]}), tmp_path / "bad.parquet")
    loader = StructuredDataset.create_dataloader(
        tmp_path, transform=ChatTemplate(chat_tokenizer()), num_workers=1, worker_mode="processes", pack=64
    )[0]
    with pytest.raises(RowErrors, match=r"row 1 of .*bad\.parquet: .*role 'assistant'"):
        list(loader)


def test_a_loader_goes_on_without_rows_that_fail(tmp_path: Path) -> None:
    chats = [[USER] if row % 5 == 2 else [USER, {**ASSISTANT, "content": f"No {row}."}] for row in range(40)]
    pq.write_table(pa.table({"messages": chats}), tmp_path / "some.parquet", row_group_size=9)
    tokenizer = chat_tokenizer()
    transform = Transform(ChatTemplate(tokenizer), on_error="skip")
    loader = StructuredDataset.create_dataloader(
        tmp_path, transform=transform, pack=128, batch_size=2, num_ranks=1, rank=0
    )[0]
    found = [tokenizer.decode(ids) for batch in loader for ids, _ in _documents(batch, "")]
    good = [chat for chat in chats if len(chat) == 2]
    assert sorted(found) == sorted(tokenizer.apply_chat_template(chat, tokenize=False) for chat in good)


WORKER = """
import pickle, sys
import pyarrow as pa
transform = pickle.load(open(sys.argv[1], "rb"))
found = transform(pa.record_batch({"messages": ['[{"role": "assistant", "content": "Hi"}]'] * 3}))
assert found.num_rows == 3
assert "torch" not in sys.modules
"""


def test_a_worker_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "transform").write_bytes(pickle.dumps(ChatTemplate(chat_tokenizer())))
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path / "transform")],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_its_text_names_columns_and_options_without_the_tokenizer() -> None:
    text = repr(ChatTemplate(chat_tokenizer(), max_length=9, long="left"))
    assert text == "ChatTemplate(..., messages='messages', mask='assistant', max_length=9, long='left')"
    assert len(repr(ChatTemplate(chat_tokenizer(), "chat", tools="tools"))) < 200


def test_a_tokenizer_is_loaded_from_its_folder(tmp_path: Path) -> None:
    chat_tokenizer().save_pretrained(str(tmp_path))
    assert made([CHAT], tokenizer=str(tmp_path)) == made([CHAT], tokenizer=tmp_path) == made([CHAT])
