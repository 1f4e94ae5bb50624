"""Arrow schemas: one for many files, and columns selected and adapted to it."""
