"""Where splits come from: files now, table snapshots through the same types."""
