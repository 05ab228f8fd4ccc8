"""Audits the cuda target: compares what an emitted program does with its plan's prediction."""
