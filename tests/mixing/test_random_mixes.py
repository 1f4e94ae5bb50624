"""The model's properties of a run, of mixes of random documents: sources, tokens, laps, and every state resumes."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.models import model as model_of
from tests.packing.helpers import documents, write_documents
from torch_dataloader_utils import Pack, Weights, combine, merge_state_dicts

L = 16
Sequence = tuple[int, tuple[int, ...]]  # the dataset, and the tokens
KINDS = ("wrap", "uncounted", "best_fit")
NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Run:
    """A mix of packed documents."""

    kind: str
    lengths: tuple[list[int], ...]
    phases: list[tuple[int, list[int]]]
    batch: int
    steps: int
    shuffle: Any
    paths: dict[str, str]

    def loader(self, rank: int, ranks: int) -> Any:
        every = pc.list_value_length(ds.field("input_ids")) >= 0
        parts: dict[str, Any] = dict(self.paths)
        if self.kind == "uncounted":
            parts = {name: {"source": path, "filters": every} for name, path in parts.items()}
        method: Any = "best_fit" if self.kind == "best_fit" else "wrap"
        weights = [(first, dict(zip(NAMES, own, strict=True))) for first, own in self.phases]
        return combine(
            parts, weights=Weights(weights, at="token") if len(weights) > 1 else weights[0][1], source_key="dataset",
            pack=Pack(L, columns=["input_ids"], method=method), tokens_per_epoch=self.steps * ranks * self.batch * L,
            batch_size=self.batch, shuffle=self.shuffle, num_ranks=ranks, rank=rank, num_workers=0, split_rows=20,
        )  # fmt: skip


@st.composite
def phases_of(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Weights above 0 first, then others from some token on, or not."""
    first = (0, draw(st.lists(st.integers(1, 12), min_size=3, max_size=3)))
    if draw(st.booleans()):
        return [first]
    then = draw(st.lists(st.integers(0, 12), min_size=3, max_size=3).filter(any))
    return [first, (draw(st.integers(1, 20 * L)), then)]


RUNS = given(
    kind=st.sampled_from(KINDS),
    lengths=st.tuples(*[st.lists(st.integers(0, 50), min_size=1, max_size=50).filter(any)] * 3),
    phases=phases_of(),
    ranks=st.integers(1, 3),
    batch=st.integers(1, 3),
    steps=st.integers(2, 10),
    shuffle=st.sampled_from([False, "splits", True]),
    data=st.data(),
)


def sequences(batches: Iterable[Any]) -> Iterator[list[Sequence]]:
    """Of each batch, the dataset and the real tokens of each sequence."""
    for batch in batches:
        real = batch["document_ids"] >= 0
        rows = zip(batch["dataset"].tolist(), batch["input_ids"], real, strict=True)
        yield [(number, tuple(tokens[mask].tolist())) for number, tokens, mask in rows]


def check_documents(found: Iterable[Sequence], run: Run, ranks: int) -> None:
    """All tokens are of the dataset; documents are whole, or cut where a sequence begins or ends.

    Counted tokens are also cut where the parts of two ranks meet, and at the end of a window.
    """
    cut = run.kind == "wrap" and (ranks > 1 or run.shuffle is True)
    for number, tokens in found:
        whole = run.lengths[number]
        starts = [0, *(i for i, (a, b) in enumerate(pairwise(tokens), 1) if b != a + 1), len(tokens)]
        assert run.kind == "best_fit" or len(tokens) == L
        for first, last in pairwise(starts):
            document, at = divmod(tokens[first], 1000)
            assert at + last - first <= whole[document]
            begins, ends = at == 0, at + last - first == whole[document]
            if run.kind == "best_fit":  # longer ones are cut into parts of L tokens
                assert at % L == 0
                assert ends or last - first == L
            elif not cut:
                assert begins or first == 0
                assert ends or last == L


def check_laps(found: Iterable[Sequence], run: Run) -> None:
    """No token came twice before all of its dataset came once."""
    times = Counter((number, token) for number, tokens in found for token in tokens)
    for number, lengths in enumerate(run.lengths):
        of_each = [times[number, token] for document in documents(lengths) for token in document]
        if sum(of_each):
            assert max(of_each) - min(of_each) <= 1, (number, Counter(of_each))


@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@RUNS
def test_a_run_has_the_sources_documents_and_laps_of_the_law_and_each_state_resumes(
    kind: str, lengths: Any, phases: Any, ranks: int, batch: int, steps: int, shuffle: Any, data: st.DataObject
) -> None:
    model = model_of("mix_model")
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name, own in zip(NAMES, lengths, strict=True):
            (Path(folder) / name).mkdir()
            paths[name] = write_documents(Path(folder) / name, own)
        run = Run(kind, lengths, phases, batch, steps, shuffle, paths)
        stop = data.draw(st.integers(1, steps - 1))
        hands, states = [], []
        for rank in range(ranks):
            loader = run.loader(rank, ranks)
            passing = iter(loader)
            first = list(sequences(islice(passing, stop)))
            states.append(loader.state_dict())
            rest = list(sequences(passing))
            again = run.loader(rank, ranks)
            again.load_state_dict(states[-1])
            assert list(sequences(again)) == rest
            hands.append([*first, *rest])
            if kind == "uncounted":  # small datasets: a rank has laps of its own
                check_laps((own for one in hands[-1] for own in one), run)
        found = [Counter(number for hand in step for number, _ in hand) for step in zip(*hands, strict=True)]
        mix = model.Mix.curriculum(phases, L)
        size = ranks * batch
        assert found == [Counter(model.sources(mix, at * size, (at + 1) * size)) for at in range(steps)]
        every = [own for hand in hands for one in hand for own in one]
        check_documents(every, run, ranks)
        if kind == "wrap":
            check_laps(every, run)
        other = data.draw(st.integers(1, 3))
        going_on = [run.loader(rank, other) for rank in range(other)]
        left = []
        for loader in going_on:
            loader.load_state_dict(merge_state_dicts(states) if kind != "wrap" else states[0])
            left.append(next(sequences(loader), []))
        numbers = Counter(number for hand in left for number, _ in hand)
        assert numbers == Counter(model.sources(mix, stop * size, stop * size + numbers.total()))
