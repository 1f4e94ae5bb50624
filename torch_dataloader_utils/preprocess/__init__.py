"""Preprocessing of columns: fitted in one scan, applied where rows are read, and the same at inference."""
