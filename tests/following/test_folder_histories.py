"""Random writers, kills, other ranks and listings that lag: each row once, relative to the state that is loaded."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.following.folder import FolderSource, round_file
from torch_dataloader_utils.following.rounds import Round, RoundCursor, Shape, cursor_of, next_files, round_of
from torch_dataloader_utils.following.seen import RoundFile, Seen
from torch_dataloader_utils.options import Follow, Options
from torch_dataloader_utils.options.keywords import parse_options
from torch_dataloader_utils.sources.files import FoundFile
from torch_dataloader_utils.sources.tables import SnapshotCursor
from torch_dataloader_utils.storage import Storage

SHAPE = Shape(pa.schema({"id": pa.int64()}), (), "parquet").text
OPTIONS = parse_options({})
Row = tuple[str, int]


@dataclass
class Writer:
    """Writes files piece by piece under their final names, or at once; of hours in any order; a row is a byte."""

    rng: random.Random
    whole: bool
    clock: float = 1000.0
    files: dict[str, tuple[int, int, float]] = field(default_factory=dict)  # size, version, time of the last write
    rows: dict[str, int] = field(default_factory=dict)
    stopped: bool = False

    def tick(self) -> None:
        self.clock += 1
        for name, (size, version, _) in list(self.files.items()):
            if size < self.rows[name]:  # it never pauses for as long as a file must settle
                grown = min(self.rows[name], size + self.rng.randint(1, 3))
                self.files[name] = grown, version + 1, self.clock
        if not self.stopped and self.rng.random() < 0.5:
            hour = max(0, int(self.clock // 4) - 250 - self.rng.choice([0, 0, 0, 1, 2]))
            name = f"h={hour}/{self.rng.getrandbits(32):08x}.parquet"
            self.rows[name] = self.rng.randint(1, 6)
            self.files[name] = (self.rows[name] if self.whole else 0), 1, self.clock

    def listed(self, lag: int) -> list[FoundFile]:
        """A listing, by a client that does not see the newest files yet."""
        names = list(self.files)[: len(self.files) - lag]
        return [
            FoundFile(name, size, name, f"etag:{version}", written=int(written * 1e9))
            for name in names
            for size, version, written in [self.files[name]]
        ]


class Listed(FolderSource):
    """A folder that a writer lists: all that follows from a listing is the product's."""

    def __init__(self, writer: Writer, follow: Follow) -> None:
        super().__init__("folder", follow, OPTIONS.read)
        self.writer, self.lag = writer, 0

    def _listed(self, read: Any, *, first: bool) -> tuple[Storage, dict[RoundFile, FoundFile]]:
        storage = Storage("s3" if self.writer.whole else "file")
        return storage, {round_file(file, 0): file for file in self.writer.listed(self.lag)}

    def _data(self, storage: Storage, fresh: Mapping[RoundFile, FoundFile], form: str | None) -> list[RoundFile]:
        return list(fresh)

    def _sound(
        self, storage: Storage, files: Sequence[RoundFile], found: Mapping[RoundFile, FoundFile], options: Options
    ) -> tuple[RoundFile, ...]:
        return tuple(file for file in files if file.size == self.writer.rows[file.name])


@dataclass(frozen=True)
class State:
    """A checkpoint: the round, how many of its rows all ranks together have taken, and what the model has learnt."""

    cursor: RoundCursor
    taken: int = 0
    learnt: Counter[Row] = field(default_factory=Counter)

    def saved(self) -> State:
        """It, through JSON."""
        values = json.loads(json.dumps(asdict(self.cursor)))
        return State(RoundCursor(**values), self.taken, Counter(self.learnt))

    @property
    def rest(self) -> list[Row]:
        rows = [(file.name, row) for file in round_of(self.cursor).files for row in range(file.size)]
        return rows[self.taken :]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.booleans(), st.sampled_from([None, 1, 3]), st.sampled_from([None, 9]))
def test_each_row_once(seed: int, whole: bool, by_folder: bool, most: int | None, forget: int | None) -> None:
    rng = random.Random(seed)
    writer = Writer(rng, whole)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("torch_dataloader_utils.following.folder.time") as clock,
        patch("os.fsync"),  # with it, a slow disk takes most of a minute
    ):
        follow = Follow(settle=2, max_files=most, forget=forget, rounds=folder if by_folder else None)
        clock.side_effect = lambda: writer.clock
        ranks = [Listed(writer, follow) for _ in range(2)]
        state = State(cursor_of(Round(0, ()), Seen(), SHAPE))
        saved = state.saved()
        for turn in range(70):
            writer.stopped = turn >= 40
            writer.tick()
            if not state.rest:
                state = State(_agreed(ranks, state.cursor, rng, writer), 0, state.learnt)
            steps = rng.randint(0, 9)
            taken = state.rest[:steps]
            state = State(state.cursor, state.taken + len(taken), state.learnt + Counter(taken))
            if rng.random() < 0.3:
                saved = state.saved()
            if rng.random() < 0.15:  # kill -9, and another number of ranks
                state = saved.saved()
                ranks = [Listed(writer, follow) for _ in range(rng.randint(1, 3))]
        quiet = 0
        while quiet < 5:
            writer.tick()
            quiet = 0 if state.rest else quiet + 1
            state = State(_agreed(ranks, state.cursor, rng, writer), 0, state.learnt + Counter(state.rest))
    expected = Counter((name, row) for name, rows in writer.rows.items() for row in range(rows))
    assert state.learnt + Counter(state.rest) == expected


def _agreed(ranks: Sequence[Listed], read: RoundCursor, rng: random.Random, writer: Writer) -> RoundCursor:
    """The next round: what the first rank finds, or with a folder of rounds what any of them finds first."""
    for rank in ranks:
        rank.lag = 0 if writer.stopped else rng.choice([0, 0, 1, 2])
    if ranks[0]._log is None:
        found = [ranks[0].added(read, OPTIONS, last=True)]
    else:
        found = [rank.added(read, OPTIONS, last=True) for rank in rng.sample(list(ranks), len(ranks))]
    rounds = [round_of(cursor) for cursor in found]
    assert rounds.count(rounds[0]) == len(rounds)
    assert isinstance(found[0], RoundCursor)
    return found[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 4))
def test_forgotten_folders_never_repeat_and_tell_late_files(seed: int, forget: int) -> None:
    rng = random.Random(seed)
    seen, read, late = Seen(), Counter[str](), 0
    files: list[RoundFile] = []
    for hour in range(12):
        for _ in range(rng.randint(1, 4)):
            own = hour if rng.random() < 0.7 else rng.randint(0, hour)
            late += f"h={own}" in seen.forgotten
            files.append(RoundFile(f"h={own}/{rng.getrandbits(40):x}.parquet", 1, "1"))
        taken = next_files([files[place] for place in seen.sorted_out(files)[0]], Follow())
        read.update(file.name for file in taken)
        seen = Seen.of(seen.plus(taken, forget).text)
        assert sum(seen.late(files).values()) == late  # each is told, with its folder
        assert len(seen.folders) <= forget
    assert max(read.values()) == 1
    assert len(read) + late == len(files)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10**6), st.integers(0, 3)), max_size=60), st.integers(0, 9)
)
def test_what_was_read_is_a_set(drawn: list[tuple[int, int, int]], cut: int) -> None:
    files = list({name: RoundFile(f"h={hour}/{name}", 1, str(version)) for hour, name, version in drawn}.values())
    first, others = files[:cut], files[cut:]
    seen = Seen.of(Seen().plus(first, None).text)
    changed = [RoundFile(file.name, file.size, f"{file.version} new") for file in first[::2]]
    new, other, same = seen.sorted_out([*others, *changed, *first[1::2]])
    assert new == list(range(len(others)))
    assert other == list(range(len(others), len(others) + len(changed)))
    assert same == list(range(len(others) + len(changed), len(files)))
    assert seen.digest == Seen().plus(first[::2], None).plus(first[1::2], None).digest
    assert seen.count == len(first)


def test_rounds_are_in_order_of_partition_values_and_of_names() -> None:
    names = ["h=10/a", "h=9/b", "h=9/a", "h=__HIVE_DEFAULT_PARTITION__/a", "h=x/a", "d=1/h=10/a", "d=1/h=2/z", "plain"]
    files = [RoundFile(name, 1, "") for name in names]
    assert [file.name for file in next_files(files, Follow())] == [
        "plain", "d=1/h=2/z", "d=1/h=10/a", "h=9/a", "h=9/b", "h=10/a", "h=x/a", "h=__HIVE_DEFAULT_PARTITION__/a",
    ]  # fmt: skip


def test_a_year_of_hours_is_small_and_quickly_sorted_out() -> None:
    rng = np.random.default_rng(0)
    files = [
        RoundFile(f"d={day:03d}/h={hour:02d}/{name}.parquet", 1, "1")
        for day in range(365)
        for hour in range(24)
        for name in rng.integers(0, 2**40, 4).tolist()
    ]
    whole = Seen().plus(files, None)
    assert len(whole.text) < 16 * len(files) + 60_000  # 12 bytes are 16 of base64
    assert len(Seen().plus(files, 48).text) < 200_000
    cursor: SnapshotCursor = cursor_of(Round(1, tuple(files[:100])), whole, SHAPE)
    assert round_of(cursor).files == tuple(files[:100])
    assert whole.sorted_out(files) == ([], [], list(range(len(files))))
