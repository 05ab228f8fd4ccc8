"""The text of the emitted program."""
