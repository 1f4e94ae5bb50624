"""Errors name the file, and keep what caused them."""

import pytest

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.storage import Naming


def refuse(cause: str) -> None:
    try:
        raise ValueError(cause)
    except ValueError as error:
        raise KeyError("part") from error


def test_a_foreign_error_becomes_one_that_names_the_file_and_keeps_its_cause() -> None:
    with (
        pytest.raises(FileReadError, match=r"f\.parquet, footer: cannot be read: KeyError") as caught,
        Naming("f.parquet", "footer"),
    ):
        refuse("https://host/f.parquet was refused")
    assert isinstance(caught.value.__cause__, KeyError)
    assert isinstance(caught.value.__cause__.__cause__, ValueError)
