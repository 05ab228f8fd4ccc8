"""Programs written by hand with jax and optax alone, for the layouts of emitted ones."""
