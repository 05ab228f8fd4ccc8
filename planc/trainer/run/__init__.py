"""A run: starting processes, the loop, heartbeats, restarting."""
