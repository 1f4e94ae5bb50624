"""Where the flights are: as plain files, and as an Iceberg table in a catalog that is one SQLite file."""

import os
from pathlib import Path

DATA = Path(os.environ.get("FLIGHTS_DATA", Path(__file__).parent / "data"))
FILES = DATA / "files"
WAREHOUSE = DATA / "warehouse"
CATALOG = {"name": "flights", "type": "sql", "uri": f"sqlite:///{WAREHOUSE}/catalog.db", "warehouse": str(WAREHOUSE)}
TABLE = "nyc.flights"
