"""Spans, diagnostics, the registry of codes, and their renderings. This package imports the standard library alone."""

from planc.diag.diagnostic import Diagnostic, Edit, Fix, Related, Severity
from planc.diag.errors import PlanError
from planc.diag.span import Source, Span

__all__ = ["Diagnostic", "Edit", "Fix", "PlanError", "Related", "Severity", "Source", "Span"]
