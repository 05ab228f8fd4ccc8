"""The sentences that the XLA target refuses."""
