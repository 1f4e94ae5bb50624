"""What is appended to a table: the wait for it, and which older rows are read beside it."""
