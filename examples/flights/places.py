"""Where the flights are: as plain files, and as an Iceberg table in a catalog that is one SQLite file."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
FILES = DATA / "files"
WAREHOUSE = DATA / "warehouse"
CATALOG = {"name": "flights", "type": "sql", "uri": f"sqlite:///{WAREHOUSE}/catalog.db", "warehouse": str(WAREHOUSE)}
TABLE = "nyc.flights"
