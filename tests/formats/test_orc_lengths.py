"""Damaged lengths in ORC stripes, on which pyarrow crashes; and that whole ones are read."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.orc.lengths import LengthCheck, possible, total
from torch_dataloader_utils.storage import open_storage

SIXES = b"\xc0\x32\x06\x00"  # 51 times 6: the first number, and the step to the next
DAMAGED = {"negative": b"\xc0\x32\x06\x01", "huge": b"\x7e\x32\x06\x00"}
COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "string": lambda: pa.array(["text 1"] * 51),
    "binary": lambda: pa.array([b"text 1"] * 51),
    "list": lambda: pa.array([[1, 2, 3, 4, 5, 6]] * 51),
    "struct": lambda: pa.array([{"x": 1, "y": "text 1"}] * 51),
}


def stored(column: pa.Array, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    orc.write_table(pa.table({"i": range(len(column)), "c": column}), sink, **options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def read(path: str | Path) -> pa.Table:
    loader, _ = StructuredDataset.create_dataloader(str(path), format="orc", num_workers=0, output_format="arrow")
    return pa.Table.from_batches(loader)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "zstd"])
@pytest.mark.parametrize("column", COLUMNS)
def test_lengths_that_cannot_be_true_are_refused(tmp_path: Path, column: str, compression: str, damage: str) -> None:
    content = stored(COLUMNS[column](), compression=compression)
    assert content.count(SIXES) == 1
    (tmp_path / "f.orc").write_bytes(content)
    assert read(tmp_path / "f.orc")["c"].to_pylist() == COLUMNS[column]().to_pylist()
    (tmp_path / "f.orc").write_bytes(content.replace(SIXES, DAMAGED[damage]))
    with pytest.raises(FileReadError, match=r"f\.orc.*column 'c' has lengths that are negative, cut off, or over"):
        read(tmp_path / "f.orc")


def test_lengths_in_a_remote_file_are_checked(tmp_path: Path) -> None:
    storage, path = open_storage(f"memory:/{tmp_path}/f.orc")
    with storage.connect().open_output_stream(path) as sink:
        sink.write(stored(COLUMNS["string"](), compression="uncompressed").replace(SIXES, DAMAGED["negative"]))
    with pytest.raises(FileReadError, match="column 'c' has lengths that are negative"):
        read(f"memory:/{tmp_path}/f.orc")


SHAPES: dict[str, Callable[[Random, int], list[int]]] = {
    "random": lambda draw, count: [draw.randrange(100) for _ in range(count)],
    "one large": lambda draw, count: [draw.randrange(8) for _ in range(count)] + [10_000],
    "growing": lambda draw, count: sorted(draw.randrange(300) for _ in range(count)),
    "shrinking": lambda draw, count: sorted((draw.randrange(300) for _ in range(count)), reverse=True),
    "equal": lambda draw, count: [draw.randrange(300)] * count,
    "steps": lambda draw, count: list(range(0, 3 * count, 3)),
}


@given(shapes=st.lists(st.sampled_from(list(SHAPES)), min_size=1), count=st.integers(1, 700), seed=st.integers(0, 99))
def test_the_sum_of_lengths_is_that_of_the_values(shapes: list[str], count: int, seed: int) -> None:
    draw = Random(seed)
    lengths = [length for shape in shapes for length in SHAPES[shape](draw, count)][:3000]
    kind = draw.choice(["uncompressed", "zlib", "snappy", "zstd"])
    source = pa.BufferReader(stored(pa.array([b"x" * length for length in lengths]), compression=kind))
    check = LengthCheck(source, orc.ORCFile(source).reader.serialized_file_tail())
    (encoded,) = check.encoded(0, check.columns["c"])
    assert total(encoded, exact=True) == sum(lengths) <= total(encoded, exact=False)
    assert possible(encoded)


@given(st.binary(max_size=200))
def test_any_bytes_are_possible_lengths_or_not(encoded: bytes) -> None:
    assert possible(encoded) in (True, False)


def test_a_run_of_patched_lengths_beyond_2_gib_is_impossible() -> None:
    head = bytes([0x81, 0xFF, 0x60, 0])  # 512 numbers of one bit above a base of four bytes, none of them patched
    assert total(head + (6_000_000).to_bytes(4, "big") + bytes(64), exact=True) == 512 * 6_000_000
    assert not possible(head + (6_000_000).to_bytes(4, "big") + bytes(64))
    assert possible(head + (4_000_000).to_bytes(4, "big") + bytes(64))


@given(kind=st.integers(0, 3), head=st.integers(0, 63), rest=st.binary(min_size=1, max_size=40))
def test_no_sum_exceeds_its_bound(kind: int, head: int, rest: bytes) -> None:
    encoded = bytes([kind << 6 | head]) + rest
    try:
        exact = total(encoded, exact=True)
    except ValueError:
        return
    assert exact <= total(encoded, exact=False)
