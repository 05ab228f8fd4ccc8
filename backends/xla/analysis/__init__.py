"""What JAX needs to know of a plan: layouts of params, factors of the mesh, peak memory."""
