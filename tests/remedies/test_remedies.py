"""What an error says is to be done is data: it changes the very call that failed, which then gets further."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.remedies.calls import CALLS, Failing, read, write_data
from torch_dataloader_utils.errors import DataLoaderUtilsError, Example, OptionError, leave_out, sentence, use


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def failure(failing: Failing, data: Path, keywords: Any) -> DataLoaderUtilsError | None:
    """What the call raises with these keywords."""
    try:
        (failing.call or read)(str(data / failing.path), **keywords)
    except DataLoaderUtilsError as error:
        return error
    return None


@pytest.mark.parametrize("failing", CALLS.values(), ids=CALLS)
def test_each_remedy_of_an_error_mends_the_call(failing: Failing, data: Path) -> None:
    error = failure(failing, data, failing.keywords)
    assert type(error) is failing.error, error
    assert error.remedies, error
    for remedy in error.remedies:
        assert str(remedy).removeprefix("leave out ") in str(error).replace("Leave out", "leave out")
        changed = remedy.applied(failing.keywords)
        assert changed != failing.keywords, f"{error}\n{remedy} changes nothing"
        after = failure(failing, data, changed)
        assert after is None or (failing.then and failing.then in str(after)), (
            f"{error}\n{remedy} leads to {type(after).__name__}: {after}"
        )


def test_the_sentence_of_an_error_is_that_of_its_remedies() -> None:
    n = Example("n", 3)
    ways = [leave_out("even"), use("exactly n steps", steps_per_epoch=n, without=["even"]), use(even="pad", rank=0)]
    assert sentence(ways) == (
        "Use steps_per_epoch=n without even (exactly n steps), even='pad' and rank=0, or leave out even."
    )
    assert sentence([leave_out("a", "b"), leave_out("c")]) == "Leave out a and b, or leave out c."
    assert [way.applied({"even": "drop"}) for way in ways] == [
        {},
        {"steps_per_epoch": 3},
        {"even": "pad", "rank": 0},
    ]
    error = OptionError("x=1: expected 2.", remedies=ways)
    assert str(error) == f"x=1: expected 2. {sentence(ways)}"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.remedies) == (str(error), error.remedies)
