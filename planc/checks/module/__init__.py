"""Findings in a torch module or a JAX tree. E1201 to E1204 are of a module that is to run on XLA, and are raised by
`planc audit --portability`."""
