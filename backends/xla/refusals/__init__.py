"""Sentences that the XLA target refuses."""
