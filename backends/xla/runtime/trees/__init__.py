"""Shards a user's pytree by a plan: finds the dims of each leaf by its name, a rule, the user's function or its
shape."""
