"""What a filter means, and which files it rules out."""
