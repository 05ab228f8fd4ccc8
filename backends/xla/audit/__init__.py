"""The audit of the xla target: what the compiler made of an emitted program, beside what its plan predicts."""
