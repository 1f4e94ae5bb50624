"""Rows taken, put and joined: by the compiled library and by numpy and Arrow, as plain Python would do it."""

import runpy
import shutil
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import join_offsets, library, put, rows, stack, take, take_ranges

pytestmark = pytest.mark.usefixtures("found")

WIDTHS = [1, 2, 3, 4, 8, 16, 20, 300]  # bytes of a row
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def table(n: int, width: int, seed: int) -> npt.NDArray[Any]:
    """`n` random rows of so many bytes: numbers where there are such."""
    values = np.random.default_rng(seed).integers(0, 256, (n, width), np.uint8)
    return values.view(f"u{width}").reshape(n) if width in (1, 2, 4, 8) else values


@EACH
@given(
    st.integers(1, 300),
    st.integers(0, 300),
    st.sampled_from(WIDTHS),
    st.sampled_from(["uint32", "int64"]),
    st.integers(0, 15),
)
def test_taken_rows_are_those_of_their_places(n: int, m: int, width: int, dtype: str, shift: int) -> None:
    source, places = table(n, width, n), np.random.default_rng(m).integers(0, n, m).astype(dtype)
    memory = np.full((m + 2) * width + shift, 7, np.uint8)  # the output begins anywhere in a cache line
    out = memory[shift : shift + m * width].view(source.dtype).reshape(m, *source.shape[1:])
    take(source, places, out)
    assert out.tolist() == [source[place].tolist() for place in places]
    assert (memory[:shift] == 7).all()
    assert (memory[shift + m * width :] == 7).all()


def test_more_places_than_numpy_takes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_TAKEN", 7)
    source, out = np.arange(100), np.empty(100, np.int64)
    take(source, np.arange(99, -1, -1, dtype=np.uint32), out)
    assert out.tolist() == list(range(99, -1, -1))


@EACH
@given(st.integers(0, 300), st.sampled_from(WIDTHS), st.integers(0, 2**32 - 1))
def test_rows_are_put_at_their_targets_and_negative_ones_nowhere(n: int, width: int, seed: int) -> None:
    source, rng = table(n, width, seed), np.random.default_rng(seed)
    targets = rng.permutation(n)
    targets[rng.random(n) < 0.3] = -1
    out, wanted = np.zeros_like(source), np.zeros_like(source)
    put(source, targets, out)
    for row, target in zip(source, targets, strict=True):
        if target >= 0:
            wanted[target] = row
    assert np.array_equal(out, wanted)


@EACH
@given(st.lists(st.lists(st.binary(max_size=700), max_size=20), min_size=1, max_size=4), st.integers(0, 60), st.data())
def test_ranges_of_any_length_are_taken(parts: list[list[bytes]], m: int, data: st.DataObject) -> None:
    texts = [text for part in parts for text in part]
    number = st.integers(0, len(texts) - 1)
    places = data.draw(st.lists(number, min_size=m, max_size=m)) if texts else []
    ranges = []
    for part in parts:
        offsets = np.cumsum([5, *map(len, part)])  # offsets of a slice begin anywhere
        ranges.append((np.frombuffer(b"".join(part), np.uint8), offsets.astype(np.int64)))
    leased: list[int] = []

    def memory(nbytes: int) -> npt.NDArray[np.uint8]:
        leased.append(nbytes)
        return np.empty(nbytes, np.uint8)

    values, ends = take_ranges(ranges, np.array(places, np.uint32), memory)
    assert ends.dtype == np.int64
    assert [values[a:b].tobytes() for a, b in pairwise(ends)] == [texts[i] for i in places]
    assert not leased or leased[-1] == sum(len(texts[i]) for i in places)


@EACH
@given(st.integers(0, 200), st.integers(1, 300), st.sampled_from([1, 2, 4, 8]), st.integers(0, 15))
def test_columns_are_put_side_by_side(n: int, k: int, width: int, shift: int) -> None:
    columns = [table(n, width, seed) for seed in range(k)]
    memory = np.full((n + 1) * k * width + shift, 7, np.uint8)  # the output begins anywhere in a cache line
    out = memory[shift : shift + n * k * width].view(f"u{width}").reshape(n, k)
    stack(columns, out)
    assert (out == np.stack(columns, axis=1)).all()
    assert (memory[:shift] == 7).all()
    assert (memory[shift + n * k * width :] == 7).all()


def test_joined_offsets_begin_at_0() -> None:
    assert join_offsets([np.array([3, 5, 5]), np.array([0]), np.array([2, 9])]).tolist() == [0, 2, 2, 9]


def test_a_library_of_another_source_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    present = library.path().name
    changed = tmp_path / "rows.c"
    changed.write_bytes(library.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(library, "SOURCE", changed)
    assert library.path().name != present
    assert library.library.__wrapped__() is None


def test_a_damaged_library_is_left_alone_with_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To load one that is cut off would end the process."""
    present = library.path()
    if not Path(f"{present}.sha256").exists():
        pytest.skip("there is no compiled library, with its digest, beside its source: install the package again")
    copied = [Path(shutil.copy(file, tmp_path)) for file in (library.SOURCE, present, f"{present}.sha256")]
    monkeypatch.setattr(library, "SOURCE", copied[0])
    assert library.library.__wrapped__() is not None
    copied[1].unlink()  # it is loaded: cutting it off itself would end this process
    copied[1].write_bytes(present.read_bytes()[:9000])
    assert library.library.__wrapped__() is None
    assert [record.message for record in caplog.records] == [
        f"{copied[1]} is not used (it is damaged: its bytes do not match their digest): numpy does its work, and "
        "shuffling rows takes longer. Install the package again."
    ]


def test_a_library_without_its_digest_is_left_alone_with_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "SOURCE", Path(shutil.copy(library.SOURCE, tmp_path)))
    assert library.library.__wrapped__() is None
    assert not caplog.records, "where there was no compiler, the installer was told"
    library.path().write_bytes(b"compiled")
    assert library.library.__wrapped__() is None
    [line] = [record.message for record in caplog.records]
    assert line.startswith(f"{library.path()} is not used (the file with its digest is missing beside it): numpy does")


def test_a_library_of_another_processor_is_left_alone_with_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "SOURCE", Path(shutil.copy(library.SOURCE, tmp_path)))
    library.path().write_bytes(b"compiled")
    library.path().with_name(f"{library.path().name}.sha256").write_text(sha256(b"compiled").hexdigest())
    assert library.library.__wrapped__() is None
    assert "is not used" in caplog.text


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_at_no_moment_a_library_is_beside_the_digest_of_another(tmp_path: Path) -> None:
    """Looked at before each change of a file while another compiler's library takes the place of the first."""
    script = f"""
import os, runpy, sys
from hashlib import sha256
from pathlib import Path

compiled = runpy.run_path({str(Path(__file__).parents[2] / "hatch_build.py")!r})["compiled"]
source, library = Path("rows.c"), Path("rows.library").resolve()
source.write_text("int number(void) {{ return NUMBER; }}")
digest, states = library.with_name("rows.library.sha256"), []

def look():
    whole = digest.exists() and library.exists()
    states.append(sha256(library.read_bytes()).hexdigest() == digest.read_text() if whole else None)

looking = []
def hook(event, arguments):
    if event in ("os.rename", "os.remove") or (event == "open" and arguments[1] and set(arguments[1]) & set("wax+")):
        if not looking:
            looking.append(event)
            look()
            looking.clear()

for number in (1, 2):
    os.environ["CC"] = f"cc -DNUMBER={{number}}"
    assert compiled(source, library) is None
    before = library.read_bytes() if number == 1 else before
    look()
    if number == 1:
        sys.addaudithook(hook)
assert library.read_bytes() != before
assert None in states and True in states, states
assert False not in states, states
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_library_that_is_built_again_stays_as_it_is(tmp_path: Path) -> None:
    """Other processes may be loading it."""
    build = runpy.run_path(str(Path(__file__).parents[2] / "hatch_build.py"))["compiled"]
    source, library = tmp_path / "rows.c", tmp_path / "rows.library"
    source.write_text("int number(void) { return 1; }")
    states = []
    for _ in range(2):
        assert build(source, library) is None
        states.append({file.name: file.stat().st_ino for file in tmp_path.iterdir()})
    assert states[0] == states[1]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_library_without_its_functions_is_left_alone_with_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "rows.c"
    source.write_text("int other(void) { return 1; }")
    monkeypatch.setattr(library, "SOURCE", source)
    compile_it = runpy.run_path(str(Path(__file__).parents[2] / "hatch_build.py"))["compiled"]
    assert compile_it(source, library.path()) is None  # no problem
    assert library.library.__wrapped__() is None
    assert "is not used" in caplog.text
    assert "tdu_take" in caplog.text
