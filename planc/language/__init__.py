"""Compiles sentences to a Plan: the readers of the verbs, and what the readers share: the draft of the plan, imports,
units, the library of bundled files, precedence."""
