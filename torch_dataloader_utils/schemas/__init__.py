"""Arrow schemas: resolves one for many files, selects columns and casts them to it."""
