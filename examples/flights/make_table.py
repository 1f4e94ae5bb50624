"""Write the flights of make_data.py to an Iceberg table, then change it as tables are changed.

    python examples/flights/make_table.py     writes examples/flights/data/warehouse/: the table, and its catalog

All flights, partitioned by month; then those that never arrived are deleted, and `distance` is renamed to `miles`.
pyiceberg deletes by writing files again; other writers add delete files, which are read as well. No file is written
again for the new name: columns are found by their ids.
"""

import shutil

import pyarrow.dataset
from places import CATALOG, FILES, TABLE, WAREHOUSE
from pyiceberg.catalog import load_catalog

flights = pyarrow.dataset.dataset(FILES, partitioning="hive").to_table()

shutil.rmtree(WAREHOUSE, ignore_errors=True)
WAREHOUSE.mkdir(parents=True)
catalog = load_catalog(**CATALOG)
catalog.create_namespace(TABLE.partition(".")[0])
small_groups = {"write.parquet.row-group-limit": "4096"}  # rows: 5 to 8 row groups a file
table = catalog.create_table(TABLE, schema=flights.schema, properties=small_groups)
with table.update_spec() as spec:
    spec.add_identity("month")
table.append(flights)

table.delete("arr_delay IS NULL")
with table.update_schema() as schema:
    schema.rename_column("distance", "miles")

left = table.scan(selected_fields=("row_id",)).count()
print(f"{TABLE}: {len(flights):,} flights written, {len(flights) - left:,} deleted again, in {WAREHOUSE}")
