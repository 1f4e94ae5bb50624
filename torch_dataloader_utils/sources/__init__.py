"""What there is to read: files, manifest files, map-style datasets, and several of these as one."""
