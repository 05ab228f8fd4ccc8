"""Starting and running a program on torch."""
