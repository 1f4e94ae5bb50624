"""What `data/golden_1.json` was fitted on: every transform, kind of column and type of vocabulary.

`python -m tests.preprocess.golden` wrote it, with what it makes of `rows()`, and the same of encoded targets. Files
that were saved are read for ever: do not write them again for another version of the format, but add one.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    Log1p,
    MinMax,
    Preprocess,
    Robust,
    Standardize,
    TargetEncode,
)

DATA = Path(__file__).parent / "data"
SAVED = DATA / "golden_1.json"
MADE = DATA / "golden_1_made.json"
TARGETS = DATA / "golden_1_targets.json"
TARGETS_MADE = DATA / "golden_1_targets_made.json"
GROWN = DATA / "golden_1_grown.json"
GROWN_MADE = DATA / "golden_1_grown_made.json"

_MOMENTS = [dt.datetime(2021, 10, 31, hour, 30, tzinfo=dt.UTC) for hour in (0, 1, 12)]
TABLE = pa.table(
    {
        "number": [1.5, -3.25, None, 1e30, math.inf, 0.1],
        "whole": pa.array([3, 3, 2**62, -5, None, 0], pa.int64()),
        "wide": pa.array([2**63 + 5, 1, 1, 0, None, 2], pa.uint64()),
        "flag": [True, False, True, None, True, True],
        "text": ["Zürich", "", "Oslo", None, "Oslo", "a" * 300],
        "bytes": [b"\0\xff", b"", None, b"a", b"a", b"b"],
        "day": [dt.date(1960, 2, 29), None, dt.date(2024, 12, 31), dt.date(1, 1, 1), dt.date(9999, 1, 1), None],
        "clock": pa.array([dt.datetime(1969, 12, 31, 23, 59, 59), None, *[dt.datetime(2024, 1, 1)] * 4]),
        "instant": pa.array([*_MOMENTS, None, *_MOMENTS[:2]], pa.timestamp("us", "Europe/Berlin")),
        "numbers": [[1.0, None], None, [], [5.0], [2.0, 3.0, 4.0], [0.5]],
        "tags": [["x", "y"], None, [], ["x", None], ["z"], ["x"]],
        "vector": pa.array([[1, 2], None, [3, None], [4, 5], [6, 7], [8, 9]], pa.list_(pa.float32(), 2)),
        "many": pa.array([f"user {i}" for i in range(6)]),
    }
)
FEW = 1001  # values are more than stand in the JSON
SPEC: Any = {
    "number": {
        "standard": [Impute("mean", indicator=True), Clip(-10, 10), Standardize(ddof=1)],
        "minmax": [Clip(quantiles=(0.1, 0.8)), MinMax(-1, 1, clip=True)],
        "robust": [Log1p(signed=True), Robust(0.1, 0.9)],
        "log": [Clip(0, None), Log1p()],
        "median": [Impute("median"), Standardize(center=False)],
        "bucket": Bucketize([-1, 0.1, 5]),
        "quantile": Bucketize(quantiles=3),
        "open": Clip(low=-math.inf, high=2),
    },
    "whole": {
        "whole_id": Categorize(),
        "whole_hash": Hash(1000, seed=7),
        "filled": [Impute("most_frequent", indicator=True), Hash(10)],
        "constant": Impute(7),
    },
    "wide": Categorize([2**63 + 5, 1, 0]),
    "flag": {"flag_id": Categorize(order="value"), "flag_number": MinMax()},
    "text": {
        "text_id": Categorize(min_count=2, unknown_ids=3),
        "text_null": Categorize(nulls="category", max_size=3),
        "text_hash": Hash(2**31),
        "text_filled": Impute("none"),
        "text_given": Categorize(["Oslo", "Zürich"]),
    },
    "bytes": {"bytes_id": Categorize(), "bytes_hash": Hash(50)},
    "day": {"day_id": Categorize(), "day": DateParts("weekday", "dayofyear", "year")},
    "clock": {"clock_id": Categorize(), "clock": DateParts("hour", "minute", "second", cyclic=True)},
    "instant": {
        "instant_id": Categorize(order="value"),
        "instant": DateParts("hour", "day"),
        "there": DateParts("hour", zone="America/New_York"),
    },
    "numbers": {"numbers": Standardize(), "number_buckets": Bucketize([1, 3])},
    "tags": {"tags": Categorize(), "tag_hashes": Hash(20)},
    "vector": [Impute("mean"), MinMax()],
    "many": {"many": Categorize([f"user {i}" for i in range(FEW)]), "kept": Keep()},
    ("text", "whole"): Cross(Hash(5000)),
    ("flag", "bytes"): Cross(Categorize(unknown_ids=2)),
}

TARGET_SPEC: Any = {
    "whole": {
        "by_whole": TargetEncode("number", by=["many", "flag"], smooth=1.5, seed=3),
        "by_clipped": [Clip(0, 3), TargetEncode("wide", by="many", folds=2)],
    },
    "bytes": {"shares": [Impute(b"a", indicator=True), TargetEncode("text", by="many", folds=3)]},
    "text": {"share": TargetEncode("flag", by="day", classes=True, smooth=0)},
    "instant": {"by_instant": TargetEncode("flag", by="instant")},
    "many": {"by_many": TargetEncode("whole", by="clock", folds=2)},
    "flag": Keep(classes=True),
}


MORE = pa.table(
    {
        "number": [2.5, 1e30, None],
        "whole": [9, 9, 3],
        "text": ["Oslo", "Kraków", "Kraków"],
        "bytes": [b"c", b"c", None],
        "day": [dt.date(2000, 1, 1)] * 2 + [dt.date(1, 1, 1)],
        "instant": pa.array([_MOMENTS[2], _MOMENTS[2], None], pa.timestamp("us", "Europe/Berlin")),
        "tags": [["w", "w"], None, ["x"]],
        "flag": [False, False, None],
    }
)
GROWING: Any = {
    "number": {
        "standard": [Impute("mean", indicator=True), Clip(-10, 10), Standardize(ddof=1)],
        "robust": [Log1p(signed=True), Robust(0.1, 0.9)],
        "often": [Impute("most_frequent"), MinMax()],
    },
    "whole": {"whole": [Impute("median"), Categorize(min_count=2)], "filled": [Impute("most_frequent"), Hash(10)]},
    "text": {"text": Categorize(min_count=2, nulls="category"), "given": Categorize(["Oslo"])},
    "bytes": Categorize(max_size=2),
    "day": Categorize(min_count=2, order="value"),
    "instant": Categorize(min_count=2),
    "tags": Categorize(min_count=2),
    ("flag", "bytes"): Cross(Categorize(min_count=2)),
    "flag": Keep(classes=True),
}


def grown() -> Preprocess:
    """What is saved as `GROWN`: fitted on the table, and then on two of its rows again."""
    return Preprocess(GROWING).fit(TABLE).fit(TABLE.slice(1, 2), update=True)


def rows() -> list[dict[str, Any]]:
    """The rows of the table, one of missing values, and one of unknown ones."""
    missing = dict.fromkeys(TABLE.column_names)
    unknown = TABLE.to_pylist()[0] | {"text": "?", "whole": 99, "bytes": b"?", "tags": ["?"], "number": -1e-320}
    return [*TABLE.to_pylist(), missing, unknown]


def made(prep: Preprocess) -> list[dict[str, Any]]:
    """What becomes of the rows, as JSON holds it: floats by their bits."""
    return [plain(prep(row)) for row in rows()]


def trained(prep: Preprocess) -> list[dict[str, Any]]:
    """What becomes of the table for training."""
    return [plain(row) for row in prep.for_training()(TABLE).to_pylist()]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON holds it."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def many_rows() -> pa.Table:
    """The table, and as many rows of other values of `many` that a vocabulary of it stands in a file of its own."""
    more = pa.table(
        {"many": [f"user {i}" for i in range(6, 2 * FEW)], "whole": pa.array(range(6, 2 * FEW), pa.int64())}
    )
    return pa.concat_tables([TABLE, more], promote_options="default")


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    if not SAVED.exists():
        fitted = Preprocess(SPEC).fit(TABLE)
        fitted.save(SAVED)
        MADE.write_text(json.dumps({"digest": fitted.digest, "rows": made(fitted)}, indent=1))
    if not TARGETS.exists():
        fitted = Preprocess(TARGET_SPEC, dtype="float64").fit(many_rows())
        fitted.save(TARGETS)
        of_training = {"mark": fitted.for_training().mark, "trained": trained(fitted)}
        made_of_them = {"digest": fitted.digest, "rows": made(fitted), **of_training}
        TARGETS_MADE.write_text(json.dumps(made_of_them, indent=1))
    if not GROWN.exists():
        fitted = grown()
        fitted.save(GROWN)
        history = {"digest": fitted.digest, "parents": fitted.parents}
        fitted.fit(MORE, update=True)
        counts = {name: fitted.counts(name) for name in ("whole", "text", "bytes", "day", "instant", "tags")}
        GROWN_MADE.write_text(json.dumps({**history, "updated": fitted.digest, "counts": counts}, indent=1))
