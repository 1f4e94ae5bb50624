"""The execution of a task: decode, delete, filter, transform, shuffle, convert. Imports no torch."""
