"""The XLA target: JAX with annotated shardings, whose collectives the compiler inserts."""
