"""The preset file: reading it, its settings, the plan embedded in it."""
