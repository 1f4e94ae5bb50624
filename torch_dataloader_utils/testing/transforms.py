"""Checks of transforms of your own."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa

from torch_dataloader_utils.preprocess import OwnTransform, Preprocess


def check_transform(transform: OwnTransform, values: pa.Array, *, rounds: int = 20, seed: int = 0) -> None:
    """Check that a transform learns and makes the same, however rows are cut, ordered, merged, sent and added later.

    Args:
        transform: the transform.
        values: of a column; some hundred, with nulls and whatever else may occur.
        rounds: how many cuts and orders are tried.
        seed: of these.

    Raises:
        ValueError: there are no values.
        AssertionError: it does not; the message says what differs.
    """
    if not len(values):
        raise ValueError("check_transform: there are no values: give some hundred, as a column may have.")
    spec, table = {"column": transform}, pa.table({"column": values})
    whole = Preprocess(spec).fit(table)
    made = whole(table)
    draw = random.Random(seed)
    for number in range(rounds):
        order = list(range(len(table)))
        draw.shuffle(order)
        shuffled = table.take(pa.array(order, pa.int64()))
        cuts = sorted({0, len(table), *(draw.randrange(len(table) + 1) for _ in range(draw.randrange(6)))})
        pieces = [shuffled.slice(a, b - a) for a, b in pairwise(cuts)]
        learned = _learned_in_parts(Preprocess(spec), pieces).parameters("column")
        assert learned == whole.parameters("column"), (
            f"round {number}: of {len(pieces)} parts in another order it learned {learned}, of all rows at once "
            f"{whole.parameters('column')}: merge() must not depend on the order, nor partial() on cuts."
        )
        updated = _learned_by_updates(Preprocess(spec), pieces).parameters("column")
        assert updated == whole.parameters("column"), (
            f"round {number}: by updates of {len(pieces)} parts in another order it learned {updated}, of all rows at "
            f"once {whole.parameters('column')}: copy.deepcopy() of what is counted must be equal to it."
        )
        again = pa.concat_tables([whole(piece) for piece in pieces])
        assert again.equals(made.take(pa.array(order, pa.int64())).combine_chunks()), (
            f"round {number}: apply() made other values of the same rows in {len(pieces)} parts: each value must be "
            "made on its own."
        )
    for row in range(min(len(table), rounds)):
        one = whole({"column": values[row].as_py()})["column"]
        expected = made["column"][row].as_py()
        assert one == expected or (one != one and expected != expected), (
            f"apply() made {one!r} of the value {values[row].as_py()!r} alone, and {expected!r} of it among others."
        )
    assert pickle.loads(pickle.dumps(whole)).digest == whole.digest, "it differs after pickling"


def _learned_by_updates(prep: Preprocess, pieces: Sequence[pa.Table]) -> Preprocess:
    """What it learns of parts that come one after another, those with rows."""
    for number, piece in enumerate(filter(len, pieces)):
        prep.fit(piece, num_ranks=1, rank=0, update=number > 0)
    return prep


def _learned_in_parts(prep: Preprocess, pieces: Sequence[pa.Table]) -> Preprocess:
    """What it learns of parts that are counted apart, and sent as pickles."""
    scan = prep.scan(pieces[0].schema)
    if scan.columns:
        for piece in pieces:
            part = scan.part()
            part.add(piece)
            scan.merge(pickle.loads(pickle.dumps(part)))
        scan.finish()
    return prep.learned(scan)
