"""Findings in a torch module that is to run on XLA; raised by `planc audit --portability`."""
