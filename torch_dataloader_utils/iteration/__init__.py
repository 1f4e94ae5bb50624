"""One pass over the data: how it begins, runs and ends."""
