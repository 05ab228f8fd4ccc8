"""A plan in JAX's terms: parameter layouts, mesh factors, peak memory."""
