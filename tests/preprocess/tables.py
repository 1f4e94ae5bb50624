"""Tables of which preprocessing is tested: real flights, and columns of every kind with all that can be in them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

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
    Robust,
    Standardize,
)


def mixed_table(rows: int, seed: int = 0) -> pa.Table:
    """Numbers with nulls, NaN, infinities, huge and tiny values; text, lists, dates, dictionaries."""
    random = np.random.default_rng(seed)

    def some(values: Any, type: pa.DataType | None = None, missing: float = 0.1) -> pa.Array:
        return pa.array(values, type, mask=random.random(rows) < missing)

    odd = random.normal(0, 1, rows) * 10.0 ** random.integers(-300, 300, rows)
    odd[random.random(rows) < 0.05] = np.nan
    odd[random.random(rows) < 0.05] = np.inf
    cities = random.choice(["Oslo", "Bergen", "", "Tromsø", "x" * 300], rows, p=[0.4, 0.3, 0.1, 0.1, 0.1])
    tags = [None if i % 7 == 3 else random.choice(["p", "q", "r"], i % 4).tolist() for i in range(rows)]
    return pa.table({
        "age": some(random.normal(40, 10, rows)),
        "income": some(random.lognormal(10, 2, rows).astype(np.float32)),
        "odd": some(odd),
        "hour": some(random.integers(0, 24, rows), pa.int8()),
        "user": random.integers(0, max(rows // 2, 1), rows),
        "city": some(cities.tolist()),
        "tags": pa.array(tags, pa.list_(pa.string())),
        "scores": pa.array([None if tag is None else [float(len(tag)), None] for tag in tags], pa.list_(pa.float64())),
        "when": some(random.integers(-(2**31), 2**31, rows), pa.timestamp("s", "Europe/Oslo")),
        "day": some([dt.date(2000, 1, 1) + dt.timedelta(int(n)) for n in random.integers(0, 9, rows)]),
        "country": some(random.choice(["NO", "SE"], rows).tolist(), missing=0.3),
        "label": random.integers(0, 2, rows),
    })  # fmt: skip


SPEC: dict[Any, Any] = {
    "age": {
        "age": [Impute("median", indicator=True), Standardize()],
        "age_bucket": Bucketize(quantiles=10),
        "age_mean": [Impute("mean"), MinMax(-1, 1)],
    },
    "income": [Clip(quantiles=(0.01, 0.99)), Log1p(signed=True), Standardize()],
    "odd": [Clip(-1e6, 1e6), Robust()],
    "hour": [Impute("most_frequent"), Bucketize([6, 12, 18])],
    "user": {"user": Hash(1 << 20), "user_id": Categorize(min_count=2, unknown_ids=3)},
    "city": Categorize(max_size=4, nulls="category"),
    "tags": Categorize(order="value"),
    "scores": Standardize(ddof=1),
    "when": DateParts("hour", "weekday", "dayofyear"),
    "day": {"day": Impute("most_frequent", indicator=True), "month": DateParts("day", cyclic=True)},
    ("country", "city"): Cross(Categorize()),
    ("country", "user"): Cross(Hash(1000)),
    "label": Keep(),
}

doubles = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 5e-324, 1.7e308, -1.7e308, 1e-300, 0.1, 1.0, 2.0]),
)
columns_of_doubles = st.lists(st.one_of(st.none(), doubles), min_size=1, max_size=40)
