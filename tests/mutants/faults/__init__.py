"""The planted faults. Each is one edit that a tired colleague could make, and the test that sees it."""

from __future__ import annotations

from . import attacks, cli, compare, core, cuda, importer, language, physics, torch_xla, trainer, xla, xla_audit
from .fault import Fault

__all__ = ["FAULTS", "Fault"]

FAULTS: tuple[Fault, ...] = (
    *core.FAULTS,
    *cuda.FAULTS,
    *xla.FAULTS,
    *xla_audit.FAULTS,
    *torch_xla.FAULTS,
    *trainer.FAULTS,
    *compare.FAULTS,
    *cli.FAULTS,
    *language.FAULTS,
    *attacks.FAULTS,
    *physics.FAULTS,
    *importer.FAULTS,
)
