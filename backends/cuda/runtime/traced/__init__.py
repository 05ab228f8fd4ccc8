"""A module's op graph, read from one run of its own code on the meta device."""
