"""Audits portability: checks that a torch module stays one program on XLA, without data-dependent reads or shapes."""
