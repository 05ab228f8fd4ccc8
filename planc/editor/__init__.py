"""The language server, one file per feature. Features are plain functions; `server` implements the protocol."""
