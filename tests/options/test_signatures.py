"""An option is one declaration: signatures, docstrings and the documentation's tables show what it says."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from torch_dataloader_utils import (
    Delta,
    DeltaDataset,
    Files,
    Iceberg,
    IcebergDataset,
    OptionError,
    StructuredDataset,
    TableDataset,
    UnknownOptionError,
    combine,
    stream,
)
from torch_dataloader_utils.loader.batch_types import Format
from torch_dataloader_utils.options import Call, option_defaults, options_of
from torch_dataloader_utils.options.workers import of_worker_mode
from torch_dataloader_utils.values import Value, flag, maybe, one_of, option, whole

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_signatures.py"))
CALLS: dict[Call, Callable[..., Any]] = {
    "stream": stream,
    "files": StructuredDataset.create_dataloader,
    "table": TableDataset.create_dataloader,
    "iceberg": IcebergDataset.create_dataloader,
    "delta": DeltaDataset.create_dataloader,
    "combine": combine,
}
each_call = pytest.mark.parametrize("call", CALLS)


def rows_of(page: str) -> dict[str, str]:
    """The keyword and default of each row of a page's tables."""
    row = re.compile(r"^\| `(\w+)` \| [^|]* \| `([^|]*)` \|", re.MULTILINE)
    return dict(row.findall((ROOT / "docs" / page).read_text()))


@each_call
def test_signature_has_each_option_as_a_keyword_with_its_default(call: Call) -> None:
    parameters = inspect.signature(CALLS[call]).parameters.values()
    keywords = {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}
    assert keywords == option_defaults(call)
    by_position = {item.name for item in parameters if item.kind is not inspect.Parameter.KEYWORD_ONLY}
    assert by_position & keywords.keys() == ({"format"} if call == "files" else set())  # as 0.2.0 had it
    assert not any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters)


@each_call
def test_docstring_has_one_line_for_each_option(call: Call) -> None:
    lines = (inspect.getdoc(CALLS[call]) or "").splitlines()
    for name, item in options_of(call).items():
        described = [line for line in lines if line.startswith(f"    {name}: ")]
        assert len(described) == 1, name
        assert item.metadata["doc"] in described[0]
        assert len(item.metadata["doc"]) > 10, f"{name}: option(..., doc=...) says what it means"


@each_call
def test_files_are_what_the_script_writes(call: Call) -> None:
    name, number = SCRIPT["CALLS"][call]
    text = (ROOT / "torch_dataloader_utils" / "api" / f"{name}.py").read_text()
    assert SCRIPT["written"](text, list(options_of(call).values()), number) == text, (
        "run python scripts/write_signatures.py"
    )


def test_documentation_lists_the_same_keywords_with_the_same_defaults() -> None:
    shown = rows_of("options.md")
    assert shown == {name: repr(default) for name, default in option_defaults("stream").items()} | fields_of(Files)
    of_mixes = {name: repr(default) for name, default in option_defaults("combine").items() if name not in shown}
    assert {name: rows_of("combine.md").get(name) for name in of_mixes} == of_mixes
    assert rows_of("iceberg.md") == fields_of(Iceberg)
    assert rows_of("delta.md") == fields_of(Delta)


def fields_of(source: type[Value]) -> dict[str, str]:
    """The fields of a source beside what it names, with their defaults."""
    return {name: repr(field.default) for name, field in source.fields.items() if not field.by_position}


@each_call
def test_words_of_a_signature_are_those_that_are_accepted(call: Call) -> None:
    literals = {name: get_args(hint) for name, hint in literal_hints(CALLS[call]).items()}
    assert literals["even"] == ("none", "drop", "pad", "sync")
    for name, words in literals.items():
        check = options_of(call)[name].metadata["check"]
        for word in words:
            held = of_worker_mode(name, word)[name] if name == "worker_mode" else word
            stored = check(name, held)
            assert stored == held or isinstance(stored, Value)
            assert check(name, stored) == stored
        with pytest.raises(OptionError):
            of_worker_mode(name, "no such word") if name == "worker_mode" else check(name, "no such word")


def literal_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The `Literal` in the type of each option that has one."""
    hints = get_type_hints(function)
    members = {name: [hint, *get_args(hint)] for name, hint in hints.items() if name != "return"}
    return {name: item for name, items in members.items() for item in items if get_origin(item) is Literal}


def test_formats_that_select_a_batch_type_are_the_output_formats() -> None:
    assert options_of("files")["output_format"].metadata["check"].allowed == get_args(Format)


@each_call
def test_unknown_keyword_gets_the_name_that_was_meant(call: Call) -> None:
    with pytest.raises(UnknownOptionError, match="did you mean 'batch_size'"):
        CALLS[call]([object()] if call == "combine" else table(call), batchsize=5)
    with pytest.raises(TypeError, match="use last_batch='drop'"):
        CALLS[call]([object()] if call == "combine" else table(call), drop_last=True)


def table(call: Call) -> Any:
    """A first argument; the keywords are looked at before it is opened."""

    class Table:
        pinned = None

        def newest(self, options: Any) -> Any: ...

        def snapshot(self, cursor: Any, options: Any) -> Any: ...

    return Table() if call == "table" else "a.b"


def test_wrong_positional_arguments_are_pythons_error() -> None:
    with pytest.raises(TypeError, match=r"StructuredDataset.create_dataloader\(\) missing 1 .* argument: 'path'"):
        StructuredDataset.create_dataloader()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"combine\(\) takes 1 positional argument but 2 were given"):
        combine([], [1.0])  # type: ignore[misc]


def test_the_format_is_also_given_by_position(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("id\n1\n2\n")
    loader, dataset = StructuredDataset.create_dataloader(tmp_path / "a.txt", "csv", batch_size=2)
    assert [batch["id"].tolist() for batch in loader] == [[1, 2]]
    assert (
        dataset._options
        == StructuredDataset.create_dataloader(tmp_path / "a.txt", format="csv", batch_size=2)[1]._options
    )


MODULE = '''
def make(
    path: str,
    *,
    {mark}
    gone: int = 5,
    even: str = "sync",
) -> None:
    """A loader.

    Args:
        path: one line
            and another.
        gone: an option that was removed: {{"a": 1}}.
        even: old words.

    Raises:
        OptionError: no.
    """
'''


def test_script_replaces_options_and_keeps_what_is_written_by_hand() -> None:
    from dataclasses import fields, make_dataclass

    kind = make_dataclass(
        "Group",
        [
            ("even", "str", option("none", one_of("none", "drop"), doc="equal steps")),
            ("shuffle", "bool | str", option(False, one_of(False, True, "all"), doc="mixed rows")),
            ("layout", "str | None", option(None, maybe(one_of("wide", "tall")), doc="a form")),
            ("rows", "int | None", option(None, maybe(whole(1)), doc="a number")),
            ("quick", "bool", option(True, flag, doc="no waiting")),
        ],
    )
    text = MODULE.format(mark=SCRIPT["MARK"])
    new = SCRIPT["written"](text, list(fields(kind)))
    signature, docstring = new.split('    """', 1)
    assert signature.split(SCRIPT["MARK"])[1].splitlines() == [
        "",
        '    even: Literal["none", "drop"] = "none",',
        '    shuffle: bool | Literal["all"] = False,',
        '    layout: Literal["wide", "tall"] | None = None,',
        "    rows: int | None = None,",
        "    quick: bool = True,",
        ") -> None:",
    ]
    assert "        path: one line\n            and another.\n        even: equal steps.\n" in docstring
    assert "gone" not in new
    assert "quick: no waiting.\n\n    Raises:\n        OptionError: no.\n" in docstring
    assert SCRIPT["written"](new, list(fields(kind))) == new
