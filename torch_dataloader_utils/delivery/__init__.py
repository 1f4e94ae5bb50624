"""From blocks to batches, on the consumer's side."""
