"""Rules that check a plan before its cost is computed."""
