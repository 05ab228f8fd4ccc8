"""The torch_xla runtime of the xla target: the bundled torch modules, annotated for XLA's partitioner."""
