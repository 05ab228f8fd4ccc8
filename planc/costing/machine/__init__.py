"""The machine: the network levels that a mesh axis spans, and the time of a collective over them."""
