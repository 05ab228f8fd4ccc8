"""What torch on XLA cannot do, as diagnostics."""
