"""Fit on Ray Data, here on this machine.

python examples/preprocess/fit_on_ray.py
"""

import pickle

import ray
from spec import FILES, SPEC, compare

from torch_dataloader_utils.preprocess import Preprocess


def counted(rows, scan):
    """What each task of Ray counts, pickled."""
    sent = ray.put(pickle.dumps(scan.part()))

    def count(batch):
        part = pickle.loads(ray.get(sent))
        part.add(batch)
        return {"part": [pickle.dumps(part)]}

    parts = rows.select_columns(scan.columns).map_batches(count, batch_format="pyarrow", batch_size=None)
    return (row["part"] for row in parts.iter_rows())


if __name__ == "__main__":
    ray.init(num_cpus=2, log_to_driver=False)
    flights = ray.data.read_parquet(str(FILES))

    prep = Preprocess(SPEC)
    scan = prep.scan(flights.schema().base_schema)
    while scan is not None:
        for part in counted(flights, scan):
            scan.merge(pickle.loads(part))
        last, scan = scan, scan.finish()
    prep.learned(last)

    ray.shutdown()
    compare(prep, "Ray")
