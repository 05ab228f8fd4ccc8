"""The targets: each emits programs for plans, runs them, and models its framework."""
