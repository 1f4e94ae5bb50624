"""Arrow columns to arrays, by rules that the schema decides. It imports no torch."""
