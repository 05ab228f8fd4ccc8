"""The audit of the cuda target: what an emitted program issues, beside what its plan predicts."""
