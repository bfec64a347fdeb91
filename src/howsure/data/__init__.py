"""Data in and out: files that are read safely, predictions written to files, many processes."""
