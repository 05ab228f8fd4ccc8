"""Memory: bytes on one device, by part and pipeline stage."""
