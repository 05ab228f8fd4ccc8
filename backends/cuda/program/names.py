"""Names that the other modules take from the rest of a program, here of a small plan."""

LOSS_CHUNKS = 2
