"""The audit of the XLA target: compares the compiled program with the predictions of its plan."""
