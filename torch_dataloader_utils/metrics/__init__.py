"""What a loader measures: seconds waited, rows delivered, where the time goes, and what limits it."""
