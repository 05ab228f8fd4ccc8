"""Findings about graphs of links in hardware files."""
