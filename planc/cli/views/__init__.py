"""Answers as text: reports, tables, charts."""
