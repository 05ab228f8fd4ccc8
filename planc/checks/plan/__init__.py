"""Rules that check a plan before it is costed."""
