"""A training run: launching processes, the training loop, heartbeats, restarts."""
