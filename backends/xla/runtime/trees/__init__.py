"""A user's pytrees under a plan: the dims of each leaf by its name, a rule, the user's function or its shape."""
