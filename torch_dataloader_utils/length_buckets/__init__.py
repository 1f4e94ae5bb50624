"""Rows of similar length in batches with a budget of tokens."""
