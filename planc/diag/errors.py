"""PlanError, the exception that the Python API raises for a user's mistake in a plan."""

from __future__ import annotations

from planc.diag.diagnostic import Diagnostic, bounded


class PlanError(Exception):
    """A plan that cannot be used. `diagnostics` says why and where: at most 100 of each code, with long texts cut.

    >>> import planc
    >>> try:
    ...     planc.load("plans/absent.plan")
    ... except planc.PlanError as error:
    ...     print([d.code for d in error.diagnostics])
    ['E0104']
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...] | list[Diagnostic]) -> None:
        self.diagnostics = bounded(tuple(diagnostics))
        super().__init__("\n".join(f"{d.code} {d.span.where()}: {d.message}" for d in self.diagnostics))
