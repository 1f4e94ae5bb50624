"""Catalogs, as for the tests of Iceberg: only its tables tell what was appended to them."""

from tests.iceberg.conftest import catalog as catalog
