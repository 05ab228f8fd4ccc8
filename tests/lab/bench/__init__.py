"""The tables of `planc bench`, one file each with `run(options)`."""
