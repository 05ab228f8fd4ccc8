"""Compare plans: differences between two, and how the cost of one depends on its numbers."""
