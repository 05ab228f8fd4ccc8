"""Traces a module's op graph from one run of its own code on the meta device."""
