"""Measurements for `tdu bench`: the loader, raw decoding, other settings, other ways to write Parquet."""
