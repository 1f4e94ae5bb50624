"""What executing a task is: decode, delete, filter, transform, shuffle, convert. It imports no torch."""
