"""Mutated files, tables, manifests and states, read in processes that may die of them."""
