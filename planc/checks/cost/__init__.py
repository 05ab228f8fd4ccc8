"""Rules that check a costed plan, and its `expect` sentences."""
