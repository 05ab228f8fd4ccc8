"""Whether a torch module stays one program on XLA: what a step reads, changes and makes depend on data."""
