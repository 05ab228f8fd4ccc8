"""Plan sentences that the XLA target refuses."""
