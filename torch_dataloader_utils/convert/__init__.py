"""Converts Arrow columns to arrays, by rules that follow from the schema. Imports no torch."""
