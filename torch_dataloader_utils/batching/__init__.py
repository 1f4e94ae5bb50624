"""Blocks to batches, and batches to the requested output format."""
