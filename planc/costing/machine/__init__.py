"""The machine: which network levels (NVLink, rail, spine) a mesh axis spans, and the time of a collective over them."""
