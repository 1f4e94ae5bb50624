"""The data files of an Iceberg table: their layouts, and a reader that returns the table's columns.

It wraps the formats of data files (Parquet, ORC, Avro). The list of files, their deletes and the table's schema are
determined by the plan (`iceberg.plan`).
"""
