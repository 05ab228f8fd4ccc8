"""Reads configuration files of other systems as plans, and writes plans as such files.

    files -> Document -> TrainingSetup -> text of a plan      (importing.py)
    Plan -> TrainingSetup -> a system's own file              (exporting.py)

A `TrainingSetup` holds what a plan and a configuration file can both express: degrees of parallelism, batch, precision,
recompute. Each system is one file in `systems/`, with the system's fields and their defaults, and functions that
convert fields to settings and back. A field is read, noted (it does not affect costs) or refused (a plan cannot express
it). `formats/` parses shell flags, YAML, JSON, TOML and `key=value`. No text of a file is ever executed.
"""
