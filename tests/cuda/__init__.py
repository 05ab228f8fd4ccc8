"""The cuda backend: emitted text, refusals, and parity with one process."""
