"""The version of planc."""

__version__ = "0.2.0"
