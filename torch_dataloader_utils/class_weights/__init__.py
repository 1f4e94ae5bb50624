"""Copies of rows by the class that they belong to, drawn anew in each epoch."""
