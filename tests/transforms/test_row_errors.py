"""The error of a transform that knows for which rows it failed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from torch_dataloader_utils import OptionError, RowErrors
from torch_dataloader_utils.iteration.failures import kept
from torch_dataloader_utils.redaction.errors import redacted_error


def test_the_message_counts_the_rows_and_shows_the_first_three() -> None:
    error = RowErrors({np.int64(9): KeyError("k"), 2: ValueError("two"), 5: ValueError("five"), 30: OSError("late")})
    assert str(error) == "4 rows failed: row 2: ValueError: two; row 5: ValueError: five; row 9: KeyError: 'k'; ..."
    assert list(error.errors) == [2, 5, 9, 30]
    assert str(RowErrors({0: ValueError("bad")})) == "1 row failed: row 0: ValueError: bad"
    assert isinstance(error, ValueError)


def test_it_crosses_a_pipe_with_its_errors_and_notes() -> None:
    error = RowErrors({1: ValueError("one"), 4: KeyError(2, "four")})
    error.add_note("seen here")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.__notes__ == ["seen here"]
    assert {row: (type(each), each.args) for row, each in again.errors.items()} == {
        1: (ValueError, ("one",)),
        4: (KeyError, (2, "four")),
    }


def test_without_a_row_it_is_a_mistake() -> None:
    with pytest.raises(OptionError, match="at least one row"):
        RowErrors({})


def test_secrets_are_shown_neither_by_it_nor_by_its_errors() -> None:
    error = RowErrors({0: OSError("https://user:hunter2@example.org/x failed")})
    assert "hunter2" not in str(error)
    assert redacted_error(error) is None
    assert "hunter2" not in str(error.errors[0])


def test_what_is_kept_of_it_holds_no_frame() -> None:
    try:
        raise ValueError("bad")
    except ValueError as error:
        failed = RowErrors({3: error})
    failed.add_note("here")
    again = kept(failed)
    assert isinstance(again, RowErrors)
    assert (str(again), again.__notes__) == (str(failed), ["here"])
    assert again.errors[3].__traceback__ is None
    assert failed.errors[3].__traceback__ is not None
