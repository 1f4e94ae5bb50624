"""Filters: which rows they select, and which files they rule out."""
