"""Text: CSV, JSON Lines and JSON, cut into ranges of lines."""
