"""Rules of a plan, before it is costed."""
