"""The file formats: a file or folder each, imported when it is used."""
