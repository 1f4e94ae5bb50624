"""One module per loader: `batches` as its own docs recommend, `prepare` for one with a format of its own."""
