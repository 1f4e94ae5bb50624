"""What Tokenize returns, in threads, processes and forks."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from torch_dataloader_utils import (
    DataNotFoundError,
    OptionError,
    RowErrors,
    RowFailedEvent,
    SchemaMismatchError,
    StructuredDataset,
    Transform,
    UnsupportedTypeError,
)
from torch_dataloader_utils.transforms import Tokenize

WORDS = ["[UNK]", "[CLS]", "[EOS]", "Oslo", "Lima", "Pune"]
UNK, CLS, EOS, OSLO, LIMA, PUNE = range(6)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", CLS)])
    return made


def batch_of(texts: list[str | None], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"text": pa.array(texts, kind or pa.string()), "id": range(len(texts))})


def ids(texts: list[str | None], **options: Any) -> list[list[int] | None]:
    values: list[list[int] | None] = Tokenize("text", tokenizer(), **options)(batch_of(texts))["input_ids"].to_pylist()
    return values


KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_ids_replace_the_text(kind: pa.DataType) -> None:
    result = Tokenize("text", tokenizer())(batch_of(["Oslo Lima", None, ""], kind))
    assert result.schema == pa.schema({"input_ids": pa.list_(pa.int64()), "id": pa.int64()})
    assert result["input_ids"].to_pylist() == [[CLS, OSLO, LIMA], None, [CLS]]


def test_options() -> None:
    texts: list[str | None] = ["Oslo Lima Pune", "Oslo"]
    assert ids(texts, add_special_tokens=False) == [[OSLO, LIMA, PUNE], [OSLO]]
    assert ids(texts, max_length=2) == [[CLS, OSLO], [CLS, OSLO]]
    assert ids(texts, max_length=3, eos_token="[EOS]") == [[CLS, OSLO, EOS], [CLS, OSLO, EOS]]


@given(st.lists(st.none() | st.lists(st.sampled_from(WORDS[3:]), max_size=6)), st.none() | st.integers(2, 5))
def test_each_text_has_the_ids_that_the_tokenizer_gives_it_alone(texts: list[Any], longest: int | None) -> None:
    alone = tokenizer()
    given_texts = [None if words is None else " ".join(words) for words in texts]
    expected = [None if text is None else alone.encode(text).ids[:longest] for text in given_texts]
    assert ids(given_texts, max_length=longest) == expected


def test_padding_and_truncation_of_the_tokenizer_are_ignored_and_left_alone() -> None:
    shared = tokenizer()
    shared.enable_padding(length=10)
    shared.enable_truncation(2)
    result = Tokenize("text", shared)(batch_of(["Oslo Lima"]))
    assert result["input_ids"].to_pylist() == [[CLS, OSLO, LIMA]]
    assert len(shared.encode("Oslo Lima").ids) == 10


def test_a_tokenizer_of_transformers_gives_the_ids_of_its_own_call() -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), unk_token="[UNK]")
    texts: list[str | None] = ["Oslo Lima", "Pune Berlin"]
    result = Tokenize("text", fast)(batch_of(texts))
    assert result["input_ids"].to_pylist() == fast(texts)["input_ids"]


def test_a_tokenizer_is_loaded_from_a_file_or_folder(tmp_path: Path) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        made = pickle.loads(pickle.dumps(Tokenize("text", source)))
        assert made(batch_of(["Lima"]))["input_ids"].to_pylist() == [[CLS, LIMA]]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match="fast tokenizer"):
        Tokenize("text", str.split)
    with pytest.raises(DataNotFoundError, match=r"tokenizer\.json"):
        Tokenize("text", tmp_path)(batch_of([]))
    with pytest.raises(OptionError, match="no such token"):
        Tokenize("text", tokenizer(), eos_token="</s>")(batch_of([]))
    for length in (0, 1, -1, True, "9"):
        with pytest.raises(OptionError, match="at least 2"):
            Tokenize("text", tokenizer(), max_length=length, eos_token="[EOS]")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="special"):
        Tokenize("text", tokenizer(), max_length=1)(batch_of([]))
    with pytest.raises(SchemaMismatchError, match="another output"):
        Tokenize("text", tokenizer(), output="id")(batch_of([]))
    with pytest.raises(UnsupportedTypeError, match="int64"):
        Tokenize("id", tokenizer())(batch_of(["Oslo"]))


def test_a_text_that_begins_with_what_the_tokenizer_adds_is_an_error_at_its_row() -> None:
    texts: list[str | None] = ["Oslo", None, "[CLS] Lima", "Lima [CLS]"]
    made = tokenizer()
    made.add_special_tokens(["[CLS]"])
    with pytest.raises(RowErrors, match=r"1 row failed: row 2: .*'\[CLS\]'.*add_special_tokens=False"):
        Tokenize("text", made)(batch_of(texts))
    without = Tokenize("text", made, add_special_tokens=False)(batch_of(texts))["input_ids"]
    assert without.to_pylist() == [[OSLO], None, [CLS, LIMA], [LIMA, CLS]]


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_error_names_the_file_and_the_row(tmp_path: Path, shuffle: bool, chained: bool) -> None:
    for file in range(2):
        texts = ["[CLS] Lima" if (file, row) == (1, 7) else "Oslo" for row in range(12)]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{file}.parquet", row_group_size=4)
    made = tokenizer()
    made.add_special_tokens(["[CLS]"])
    function = Tokenize("text", made)
    given: Any = [same, function] if chained else function
    options: Any = {"num_ranks": 1, "rank": 0, "shuffle": shuffle, "batch_size": 4}
    with pytest.raises(RowErrors, match=r"row 7 of .*1\.parquet: ValueError: the text begins with"):
        list(StructuredDataset.create_dataloader(tmp_path, transform=given, **options)[0])
    failed: list[Any] = []
    transform = Transform(given, on_error="skip")
    loader = StructuredDataset.create_dataloader(tmp_path, transform=transform, **options)[0]
    loader.on_event(failed.append)
    assert sum(int(batch["valid"].sum()) for batch in loader) == 23
    (event,) = [each for each in failed if isinstance(each, RowFailedEvent)]
    assert (Path(event.row.file).name, event.row.row) == ("1.parquet", 7)


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def test_a_list_of_transforms_is_called_in_order(tmp_path: Path) -> None:
    def first(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 1)

    pq.write_table(pa.table({"text": ["Oslo", "Lima"]}), tmp_path / "texts.parquet")
    transform = Transform([first, Tokenize("text", tokenizer())], rows="any")
    (batch,) = StructuredDataset.create_dataloader(tmp_path, transform=transform, output_format="dict")[0]
    assert batch["input_ids"] == [[CLS, OSLO]]
    with pytest.raises(SchemaMismatchError, match=r"Use transform=Transform\(f, rows='any'\)"):
        list(StructuredDataset.create_dataloader(tmp_path, transform=[first, Tokenize("text", tokenizer())])[0])


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_workers_resume_in_the_middle_with_the_right_ids(tmp_path: Path, mode: Any) -> None:
    texts = [" ".join(WORDS[3:][: number % 4]) for number in range(60)]
    pq.write_table(pa.table({"text": texts, "id": range(60)}), tmp_path / "texts.parquet", row_group_size=10)

    def loader() -> Any:
        return StructuredDataset.create_dataloader(
            tmp_path, transform=Tokenize("text", tokenizer()), batch_size=7, num_workers=2, worker_mode=mode
        )[0]

    begun = loader()
    steps = iter(begun)
    batches = [next(steps) for _ in range(3)]
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    steps.close()
    seen = {}
    for batch in [*batches, *resumed]:
        values, offsets = batch["input_ids"]["values"], batch["input_ids"]["offsets"]
        rows = [values[a:b].tolist() for a, b in pairwise(offsets)]
        seen |= dict(zip(batch["id"].tolist(), rows, strict=True))
    assert seen == {number: [CLS, *range(3, 3 + number % 4)] for number in range(60)}


ALONE = """
import os, sys
import pyarrow as pa
from torch_dataloader_utils.transforms import Tokenize

assert "torch" not in sys.modules
transform = Tokenize("text", sys.argv[1])
batch = pa.record_batch({"text": ["Oslo Lima"] * 1000})
before = len(os.listdir("/proc/self/task"))
transform(batch)
assert len(os.listdir("/proc/self/task")) == before, "the tokenizer started threads"
child = os.fork()
if not child:
    transform(batch)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads as Linux lists them")
def test_the_tokenizer_starts_no_threads_and_forks_quietly(tmp_path: Path) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ALONE, str(tmp_path)],  # of fork, since Python 3.12
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
