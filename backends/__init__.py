"""The targets: each writes the program, runs it, and knows what its framework makes of a plan."""
