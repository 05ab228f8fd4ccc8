"""Portability audit: does a torch module stay one program on XLA? Data-dependent reads, shapes and constants."""
