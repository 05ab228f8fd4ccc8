"""The option `--with CHANGE`, which changes the machine of a plan, such as the bandwidth of a link."""

from __future__ import annotations

import argparse

from planc.driver import Examined


def add_with(parser: argparse.ArgumentParser) -> None:
    """Add the option `--with CHANGE`, which may be repeated."""
    about = "the machine with something otherwise, such as 'link A-B at 50 %%' or 'rail 2 gone'; may be repeated"
    parser.add_argument("--with", dest="changes", action="append", default=[], metavar="CHANGE", help=about)


def show_what_if(examined: Examined, options: argparse.Namespace) -> int:
    """Print the step before and after the machine changes in `options`. Return the exit status."""
    from planc.cli.common import exit_status, print_diagnostics, print_json, refused
    from planc.cli.views.what_if_text import lines
    from planc.compare.what_if import sources_of, what_if
    from planc.diag.errors import PlanError

    try:
        found, after = what_if(examined, options.changes, options.target)
    except PlanError as error:
        return refused(error.diagnostics, options.format, sources_of(examined, options.changes))
    if options.format == "json":
        print_json(found.to_json())
    else:
        print("\n".join(lines(found)))
        if after.report.diagnostics:
            print()
            print_diagnostics(after.report.diagnostics, after.sources)
    return exit_status(after.report.diagnostics)
