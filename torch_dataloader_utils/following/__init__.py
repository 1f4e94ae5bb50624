"""What is appended to a table: which older rows are read beside it."""
