"""Names of one file share one spelling, and names of different files do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.storage.spelling import one_spelling

SAME = [
    ["s3://b/x", "s3a://b/x", "s3n://b/x", "s3://b/./x", "s3://b/y/../x"],
    ["file:///t/x", "file:/t/x", "/t/x", "/t//x", "//t/x", "/t/y/../x", "/t/./x", "file:///t//x"],
    ["https://h/a b", "http://h/a%20b", "http://h//a%20b", "http://h/./a b", "http://h/c/%2e%2e/a b"],
    ["gs://b/x", "gcs://b/x"],
    ["abfs://c/x", "abfss://c/x", "az://c/x"],
]


@pytest.mark.parametrize("names", SAME, ids=lambda names: names[0])
def test_all_names_of_a_file_share_a_spelling(names: list[str]) -> None:
    assert len({one_spelling(name) for name in names}) == 1


def test_names_of_different_files_have_other_spellings() -> None:
    different = [*(names[0] for names in SAME), "s3://b//x", "/t/%20", "/t/ ", "/t/X", "/t/x.", "/t/..x", "s3://b/x/"]
    assert len({one_spelling(name) for name in different}) == len(different)


@given(st.lists(st.sampled_from(["a", "b", ".", "..", "", "a.b", "..c"]), max_size=6))
def test_the_spelling_of_a_spelling_is_itself(parts: list[str]) -> None:
    for start in ("/", "s3://", "http://", "file:///"):
        spelled = one_spelling(start + "/".join(parts))
        assert one_spelling(spelled) == spelled
