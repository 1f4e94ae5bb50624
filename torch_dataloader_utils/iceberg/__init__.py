"""All of Iceberg: tables and their plans, which the rest of the package takes from `tables`, and data files."""
