"""Compiles sentences to a Plan: the verbs, and what they share: drafts, imports, units, the library, precedence."""
