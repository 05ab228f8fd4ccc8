"""Training data: files, streams, tokens."""
