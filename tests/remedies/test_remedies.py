"""What an error says is to be done is data: it changes the very call that failed, which then gets further."""

from __future__ import annotations

import pickle

import pytest

from tests.remedies.calls import CALLS, write_data
from tests.remedies.following import Outcome, created, figures, outcomes, unmet
from tests.remedies.messages import messages
from tests.remedies.without import NOT_FOLLOWED, WITHOUT
from torch_dataloader_utils.errors import Example, OptionError, leave_out, sentence, use

Places = set[tuple[str, int]]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Outcome], Places]:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    with created() as places:
        found = outcomes(folder)
    return found, places


@pytest.mark.parametrize("name", CALLS)
def test_each_remedy_of_an_error_mends_the_call(followed: tuple[dict[str, Outcome], Places], name: str) -> None:
    outcome, failing = followed[0][name], CALLS[name]
    error = outcome.error
    assert type(error) is failing.error, error
    assert error.remedies, error
    for remedy, changed, after in outcome.after:
        assert str(remedy).removeprefix("leave out ") in str(error)
        assert changed != failing.keywords, f"{error}\n{remedy} changes nothing"
        assert after is None, f"{error}\n{remedy} leads to {type(after).__name__}: {after}"


def test_each_error_with_remedies_is_met_by_a_failing_call(followed: tuple[dict[str, Outcome], Places]) -> None:
    print(figures(*followed))  # noqa: T201
    others = [place for place in unmet(followed[1]) if place not in NOT_FOLLOWED]
    assert not others, "add a call to tests/remedies/calls.py, or the reason why there is none to without.py"


def test_errors_that_say_what_is_to_be_done_have_it_as_data_or_a_reason_why_not() -> None:
    listed = {place for places in WITHOUT.values() for place in places}
    others = sorted({m.place for m in messages() if m.advises and not m.has_remedies} - listed)
    assert not others, "give the error remedies=, or list its function with a reason in tests/remedies/without.py"


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
