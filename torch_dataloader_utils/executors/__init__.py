"""Where tasks run: on threads, in worker processes, or in the calling thread. Imports no torch."""
