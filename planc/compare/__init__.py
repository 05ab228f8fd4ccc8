"""Plans beside each other: what changes between two, and how one's cost moves with its numbers."""
