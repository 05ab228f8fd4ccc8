"""Sentences to Plan: the verbs, and what they share: drafts, imports, units, the library, which sentence wins."""
