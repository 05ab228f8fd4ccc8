"""Answers as text for people: reports, tables, charts."""
