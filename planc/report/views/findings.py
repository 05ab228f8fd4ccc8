"""The diagnostics view: diagnostics about the plan, and the targets that support it."""

from __future__ import annotations

from planc.driver import Examined
from planc.report.data import Data


class Finding(Data):
    """One diagnostic."""

    code: str
    severity: str
    file: str
    line: int
    message: str
    help: str
    fix: str
    """Title of the edit that fixes it; "" without one."""


class TargetFinding(Data):
    """A target's answer to the plan."""

    target: str
    lowers: bool
    refusals: tuple[str, ...]


class Findings(Data):
    """Findings view."""

    findings: tuple[Finding, ...]
    targets: tuple[TargetFinding, ...]
    summary: str


def findings(examined: Examined) -> Findings:
    """Return the diagnostics about the plan in `examined`, and the targets that support it, or why they do not."""
    report = examined.report
    found = tuple(
        Finding(
            code=d.code,
            severity=d.severity,
            file=d.span.file,
            line=d.span.line,
            message=d.message,
            help=d.help,
            fix=d.fix.title if d.fix else "",
        )
        for d in report.diagnostics
    )
    targets = tuple(
        TargetFinding(
            target=t.target,
            lowers=t.lowers,
            refusals=tuple(f"{r.code} at line {r.line}: {r.message}" for r in t.refusals),
        )
        for t in report.targets
    )
    counts = {kind: sum(f.severity == kind for f in found) for kind in ("error", "warning", "note")}
    named = ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in counts.items() if n)
    runs = " and ".join(t.target for t in targets if t.lowers)
    refuses = " and ".join(t.target for t in targets if not t.lowers)
    stacks = f" A program can be made for {runs}{f', none for {refuses}' if refuses else ''}." if runs else ""
    stacks = stacks or (f" No program can be made for {refuses}." if refuses else "")
    return Findings(findings=found, targets=targets, summary=f"{named or 'No errors, warnings or notes'}.{stacks}")
