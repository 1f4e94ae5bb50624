"""Delta Lake tables: their log, as the deltalake package reads it, and the plans made from it."""
