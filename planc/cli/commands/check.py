"""`planc check FILE...`: is the plan right, does it fit, how fast is it, what limits it."""

from __future__ import annotations

import argparse

from planc.cli.common import add_set, add_target, print_diagnostics, print_json
from planc.driver import Checked, examine


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--fix", action="store_true", help="apply the edits that mend what was found")
    parser.add_argument("--brief", action="store_true", help="one line for each plan")
    add_target(parser, required=False)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    if options.fix:
        from planc.cli.apply_fixes import fix_file

        for file in options.files:
            fix_file(file, dict(options.set), options.target)
    checked = [examine(file, set=dict(options.set), target=options.target) for file in options.files]
    _print(checked, options)
    return 0 if all(c.report.ok for c in checked) else 1


def _print(checked: list[Checked], options: argparse.Namespace) -> None:
    diagnostics = [d for c in checked for d in c.report.diagnostics]
    if options.format == "json":
        reports = [c.report.to_json() for c in checked]
        print_json(reports[0] if len(reports) == 1 else reports)
    elif options.format == "sarif":
        from planc import __version__
        from planc.checks import rules
        from planc.diag.sarif import sarif

        print_json(sarif(diagnostics, rules(), __version__))
    elif options.format == "github":
        from planc.diag.sarif import github

        print(github(diagnostics))
    else:
        for index, c in enumerate(checked):
            print("\n" if index else "", end="")
            show(c, brief=options.brief)


def show(checked: Checked, *, brief: bool = False) -> None:
    """One plan as text: the report if there is one, then what was found."""
    report = checked.report
    if report.step is not None:
        from planc.cli.views.report_text import brief_line, print_report

        if brief:
            print(brief_line(report))
        else:
            print_report(report)
    if report.diagnostics:
        print() if report.step is not None else None
        print_diagnostics(report.diagnostics, checked.sources)
