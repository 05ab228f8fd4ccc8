"""The machine: where an axis crosses it, and the time of a collective there."""
