"""How datasets are mixed, from their row counts alone: rows per epoch, laps, and the rows of each in every batch."""
