"""Reads configuration files of other systems as plans, and writes plans as such files.

    files -> Document -> TrainingSetup -> text of a plan      (importing.py)
    Plan -> TrainingSetup -> a system's own file              (exporting.py)

A `TrainingSetup` holds what a plan and a configuration file can both express: degrees of parallelism, batch, precision,
recompute. Each system is one file of `systems/`: a table of the system's fields with their defaults, which fields are
read, noted or refused, and functions from fields to settings and back. `formats/` parses the file formats: shell flags,
YAML, JSON, TOML, `key=value`. Nothing of a foreign file is ever executed.
"""
