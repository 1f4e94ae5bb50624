"""The data files of an Iceberg table: what of them is read, and a reader that gives the table's columns.

It wraps the formats that data files are in (Parquet, ORC, Avro). Which files there are, what deletes rows of them,
and the table's schema comes from the table's manifests (`iceberg.plan`).
"""
