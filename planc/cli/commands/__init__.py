"""One file per command: `ARGUMENTS` it takes and `run`, which prints and returns the exit status."""
