"""Rules of a costed plan, and its own expectations."""
