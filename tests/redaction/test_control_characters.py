"""Names and values of the data that a terminal would obey are shown, not obeyed."""

from __future__ import annotations

import json
import logging
import traceback
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from torch_dataloader_utils import Codes, StructuredDataset, combine
from torch_dataloader_utils.cli.app import app
from torch_dataloader_utils.redaction import printable, redacted

# A title of the terminal's window (OSC), a colour (CSI), its C1 form, a bell, a backspace, a return, and a change of
# direction; no character of a file name is a slash or NUL.
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b1m\x85\b\r\u202egnp.\u2066x\u200f"


def obeyed(text: str) -> list[str]:
    """The characters of a text that a terminal would obey, or that change the order of what it shows."""
    return [
        sign
        for sign in text.replace("\r\n", "\n")
        if (unicodedata.category(sign) == "Cc" and sign not in "\n\t")
        or unicodedata.bidirectional(sign) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        or sign in "\u200e\u200f\u061c\u2028\u2029"
    ]


@given(st.text())
def test_no_text_for_people_has_them(text: str) -> None:
    assert not obeyed(printable(text))
    assert printable(printable(text)) == printable(text)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp"])))
def test_other_texts_stay(text: str) -> None:
    assert printable(text) == redacted(text)
    assert printable(f"{text}\n\tnext line\r\n{text}") == redacted(f"{text}\n\tnext line\r\n{text}")


def test_how_they_are_shown() -> None:
    assert printable("a\x1b[31mb\x9bc\u202ed") == r"a\x1b[31mb\x9bc\u202ed"
    assert redacted("a\x1b[31mb") == "a\x1b[31mb"  # for programs


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder, a file, and a column with such names, and such values."""
    folder = tmp_path / f"f{HOSTILE}"
    folder.mkdir()
    table = pa.table({"id": range(8), f"c{HOSTILE}": [f"v{HOSTILE}"] * 8, "s": ["a"] * 8})
    pq.write_table(table, folder / f"a{HOSTILE}.parquet", row_group_size=4)
    return folder


def damaged(folder: Path) -> Any:
    path = next(folder.iterdir())
    path.write_bytes(path.read_bytes()[:-9])
    return StructuredDataset.create_dataloader(folder, batch_size=4)


def other_types(folder: Path) -> Any:
    pq.write_table(pa.table({f"c{HOSTILE}": range(3)}), folder / "b.parquet")
    return StructuredDataset.create_dataloader(folder, batch_size=4)


def unknown_value(folder: Path) -> Any:
    strings = Codes({f"c{HOSTILE}": ["x"]})
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=4, strings=strings)
    return list(loader)


def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([f"nothing{HOSTILE}"]) if batch.num_rows else batch


def failing_transform(folder: Path) -> Any:
    return list(StructuredDataset.create_dataloader(folder, batch_size=4, transform=transform)[0])


def two(folder: Path) -> Any:
    one = StructuredDataset.create_dataloader(folder, batch_size=4)[1]
    other = StructuredDataset.create_dataloader(folder, batch_size=4, columns=["id"])[1]
    return combine({f"n{HOSTILE}": one, "other": other}, batch_size=4)


@pytest.mark.parametrize(
    "call",
    [
        damaged,
        other_types,
        unknown_value,
        failing_transform,
        two,
        lambda folder: StructuredDataset.create_dataloader(folder / f"none{HOSTILE}"),
        lambda folder: StructuredDataset.create_dataloader(folder, columns=[f"none{HOSTILE}"]),
        lambda folder: StructuredDataset.create_dataloader(folder, filters=[(f"c{HOSTILE}", "=", 3)]),
        lambda folder: StructuredDataset.create_dataloader(folder, format=f"none{HOSTILE}"),
        lambda folder: StructuredDataset.create_dataloader(folder, partitioning=f"none{HOSTILE}"),
        lambda folder: StructuredDataset.create_dataloader(folder, dtypes={f"c{HOSTILE}": "float32"}),
    ],
)
def test_errors(data: Path, call: Callable[[Path], Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "torch_dataloader_utils")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of many classes
        call(data)
    assert not obeyed(str(caught.value))
    assert not obeyed("".join(traceback.format_exception_only(caught.value)))
    cause = caught.value.__cause__
    while cause is not None:
        assert not obeyed(str(cause))
        cause = cause.__cause__
    assert not obeyed(caplog.text)


def test_descriptions_and_logs(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "torch_dataloader_utils")
    (data / f"README{HOSTILE}.md").write_text("read me")
    loader, dataset = StructuredDataset.create_dataloader(data, batch_size=4, class_weights={"s": {f"w{HOSTILE}": 2}})
    assert len(list(loader)) >= 1
    assert "README" in caplog.text
    mix = combine({f"n{HOSTILE}": dataset}, batch_size=4).dataset
    shown = [caplog.text, repr(loader), repr(dataset), repr(mix)]
    shown += [repr(dataset.describe()), dataset.describe()._repr_html_(), repr(mix.describe()), str(mix.describe())]
    plan = dataset.plan()
    shown += [repr(plan), plan._repr_html_(), repr(dataset._source.files[0].info)]
    assert [obeyed(text) for text in shown] == [[]] * len(shown)
    assert plan.table()[0]["file"] == f"{data}/a{HOSTILE}.parquet"  # for programs


def test_a_name_with_a_newline_makes_no_log_record_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"id": range(3)}), tmp_path / "a.parquet")
    (tmp_path / "b\nERROR torch_dataloader_utils: all is lost\r.md").write_text("")
    StructuredDataset.create_dataloader(tmp_path, batch_size=4)
    (line,) = [record.getMessage() for record in caplog.records if "all is lost" in record.getMessage()]
    assert r"b\nERROR torch_dataloader_utils: all is lost\r.md" in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["describe"],
        ["schema"],
        ["head"],
        ["plan", "--num-ranks", "2"],
        ["verify"],
        ["index", "--manifest", f"m{HOSTILE}"],
        ["head", "--columns", f"none{HOSTILE}"],
        ["describe", "--format", f"none{HOSTILE}", "--debug"],
    ],
    ids=" ".join,
)
def test_the_command_line(data: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    name, *options = command
    done = CliRunner().invoke(app, [name, str(data), *options], prog_name="tdu")
    assert done.output
    assert not obeyed(done.stdout)
    assert not obeyed(done.stderr)


def test_json_has_the_names_as_they_are(data: Path) -> None:
    def values(*arguments: str) -> Any:
        return json.loads(CliRunner().invoke(app, [*arguments, "--json"], prog_name="tdu").stdout)

    assert values("head", str(data))[0] == {"id": 0, f"c{HOSTILE}": f"v{HOSTILE}", "s": "a"}
    assert values("plan", str(data))["file_shares"][0]["path"] == f"{data}/a{HOSTILE}.parquet"
