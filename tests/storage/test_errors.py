"""Errors name the file, and tell no secret: not even by what a traceback prints before them."""

import traceback

import pytest

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.storage import Naming


def refuse(cause: str) -> None:
    try:
        raise ValueError(cause)
    except ValueError as error:
        raise KeyError("part") from error


def test_a_secret_of_a_cause_is_not_printed() -> None:
    with (
        pytest.raises(FileReadError, match=r"f\.parquet, footer: cannot be read: KeyError") as caught,
        Naming("f.parquet", "footer"),
    ):
        refuse("https://host/f.parquet?sig=SECRET was refused")
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_a_cause_without_a_secret_is_kept() -> None:
    with pytest.raises(FileReadError) as caught, Naming("f.parquet", lambda: "row group 3"):
        refuse("the page header is damaged")
    assert str(caught.value).startswith("f.parquet, row group 3: ")
    assert "the page header is damaged" in "".join(traceback.format_exception(caught.value))
