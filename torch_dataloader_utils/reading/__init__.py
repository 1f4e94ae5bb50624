"""Executes tasks: decode, delete, filter, transform, shuffle, convert. Imports no torch."""
