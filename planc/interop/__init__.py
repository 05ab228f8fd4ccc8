"""Reads configuration files of other systems as plans, and writes them from plans.

    files -> Document -> TrainingSetup -> text of a plan      (importing.py)
    Plan -> TrainingSetup -> a system's own file              (exporting.py)

A `TrainingSetup` holds what both sides can express: degrees of parallelism, batch, precision, recompute. Each system is
one file of `systems/`: a table of its fields with defaults, which of them are read, noted or refused, and functions
from fields to settings and back. `formats/` parses the file formats: shell flags, YAML, JSON, TOML, `key=value`.
Nothing of a foreign file is ever executed.
"""
