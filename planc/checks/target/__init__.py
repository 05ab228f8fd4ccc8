"""Rules of a target: raised while lowering."""
