"""Subsets of rows by a frozen hash: which rows, files or segments belong to `train`, and which to a sample."""
