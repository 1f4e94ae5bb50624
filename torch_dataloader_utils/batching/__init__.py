"""Blocks to batches, and batches to what the user asked for."""
