"""Other systems' files: read as plans, written from plans."""
