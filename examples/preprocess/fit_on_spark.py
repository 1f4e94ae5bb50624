"""Fit on Spark, here in local mode with two cores. Needs Java 17 or newer.

python examples/preprocess/fit_on_spark.py
"""

import pickle

import pyarrow as pa
from pyspark.sql import SparkSession
from spec import FILES, SPEC, compare

from torch_dataloader_utils.preprocess import Preprocess


def counted(rows, scan):
    """What each task of Spark counts, pickled."""
    sent = pickle.dumps(scan.part())

    def count(batches):
        part = pickle.loads(sent)
        for batch in batches:
            part.add(batch)
        yield pa.RecordBatch.from_pydict({"part": [pickle.dumps(part)]})

    return rows.select(scan.columns).mapInArrow(count, "part binary").toLocalIterator()


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    flights = spark.read.parquet(str(FILES))

    prep = Preprocess(SPEC)
    scan = prep.scan(flights.limit(0).toArrow().schema)
    while scan is not None:
        for row in counted(flights, scan):
            scan.merge(pickle.loads(row.part))
        last, scan = scan, scan.finish()
    prep.learned(last)

    spark.stop()
    compare(prep, "Spark")
