"""Who executes tasks: threads, worker processes, or the caller. It imports no torch."""
