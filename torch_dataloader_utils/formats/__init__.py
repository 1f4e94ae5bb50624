"""The file formats, each in its own module or package, which is imported on first use."""
