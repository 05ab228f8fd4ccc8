"""Configuration files of other systems: read as plans, and written from plans.

    files -> Document -> TrainingSetup -> text of a plan      (importing.py)
    Plan -> TrainingSetup -> a system's own file              (exporting.py)

A `TrainingSetup` holds what both sides can say: degrees of parallelism, batch, precision, recomputation. Each system is
one file of `systems/`: a table of its fields with their defaults, which of them are read, noted or refused, and
how a setting of the setup follows from them, and the other way round. `formats/` reads the surface: shell flags,
YAML, JSON, TOML, `key=value`. Nothing of a foreign file is ever executed.
"""
