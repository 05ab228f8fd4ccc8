"""Starting and running a program on JAX."""
