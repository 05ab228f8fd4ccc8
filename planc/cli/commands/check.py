"""`planc check FILE...`: correctness, memory, speed and bottleneck of plans."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_costed_target, add_set, exit_status, print_diagnostics, print_json, print_json_list
from planc.cli.foreign import add_foreign, check_system, examine_foreign, is_foreign_name
from planc.cli.with_changes import add_with, show_what_if
from planc.diag.errors import PlanError
from planc.diag.quoting import printable
from planc.driver import Examined, examine, save_models
from planc.files import first_word

if TYPE_CHECKING:
    from planc.driver.serving import ServeExamined

WATCH_S = 0.3
"""Polling interval (s) of `--watch`."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a plan, another system's file (several of a folder that need each other are one), or a folder of plans",
    )
    parser.add_argument("--fix", action="store_true", help="apply the safe fixes, and show them as diffs")
    parser.add_argument("--unsafe-fixes", action="store_true", help="the same, with those that change the plan")
    add_foreign(parser)
    parser.add_argument("--strict", action="store_true", help="exit 1 for warnings too, and approximate nothing")
    parser.add_argument("--watch", action="store_true", help="check again whenever a file changes, until interrupted")
    parser.add_argument("--brief", action="store_true", help="one line for each plan")
    allow = (
        "run the code that `model from transformers` or `model from code` names, and keep its op graph beside the plan;"
        " run a launch script, walled off, to see what it starts"
    )
    parser.add_argument("--allow-code", action="store_true", help=allow)
    add_costed_target(parser)
    add_set(parser)
    add_with(parser)


def run(options: argparse.Namespace) -> int:
    files = [plan for file in options.files for plan in plans_of(Path(file))]
    if not files:
        print(f"planc check: no plan in {', '.join(options.files)}", file=sys.stderr)
        return 2
    if options.fix or options.unsafe_fixes:
        _fix([file for file in files if not is_foreign_name(file)], options)
    if wrong := check_system(options.system):
        print(f"planc check: --from: {wrong}", file=sys.stderr)
        return 2
    if options.allow_code and (status := _save_models(files, options)):
        return status
    if options.changes:
        return _what_ifs(files, options)
    checked = _all_examined(files, options)
    _print(checked, options)
    while options.watch:
        _wait_for_a_change([*map(Path, options.files), *files, *(Path(name) for c in checked for name in c.sources)])
        if sys.stdout.isatty():
            print("\033[2J\033[H", end="")  # an empty screen
        files = [plan for file in options.files for plan in plans_of(Path(file))]
        checked = _all_examined(files, options)
        _print(checked, options)
    return max(_status(c, strict=options.strict) for c in checked)


def _what_ifs(files: list[Path], options: argparse.Namespace) -> int:
    if len(files) > 1 or options.watch or options.format not in ("text", "json"):
        print("planc check: --with takes one plan, text or JSON, and no --watch", file=sys.stderr)
        return 2
    one = _examined(files[0], options)
    if not isinstance(one, Examined):
        print("planc check: --with takes a training plan", file=sys.stderr)
        return 2
    return show_what_if(one, options)


def _save_models(files: list[Path], options: argparse.Namespace) -> int:
    """Run the code of the plans' models (`--allow-code`) and save their op graphs. Return 1 if one fails, else 0."""
    for file in (file for file in files if not is_foreign_name(file)):
        try:
            for kept in save_models(file, set=dict(options.set), target=options.target):
                print(printable(f"planc check: wrote {kept}"), file=sys.stderr)
        except PlanError as error:
            print_diagnostics(list(error.diagnostics), {})
            return 1
    return 0


def _wait_for_a_change(files: list[Path]) -> None:
    print(f"planc check: watching {len(set(files))} files; Ctrl-C ends it", file=sys.stderr, flush=True)
    sys.stdout.flush()
    before = list(map(_state, files))
    while list(map(_state, files)) == before:
        time.sleep(WATCH_S)


def _state(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _all_examined(files: list[Path], options: argparse.Namespace) -> list[Examined | ServeExamined]:
    if len(files) == 1:
        return [_examined(files[0], options)]
    from planc.cli.progress import Progress

    checked = []
    with Progress("check") as progress:
        for number, file in enumerate(files, 1):
            progress.show(printable(f"{file} ({number} of {len(files)})"))
            checked.append(_examined(file, options))
    folders = {file.parent for file in files if file.name != "config.json"}  # a model's config may lie elsewhere
    together = all(map(is_foreign_name, files)) and len(folders) == 1
    if together and all(
        isinstance(one, Examined) and one.report.step is None for one in checked
    ):  # no file says enough by itself
        one = examine_foreign(files[0], options, *files[1:])
        errors = [sum(d.severity == "error" for d in c.report.diagnostics) for c in (one, *checked)]
        return [one] if one.report.step is not None or errors[0] < max(errors[1:]) else checked
    return checked


def _status(checked: Examined | ServeExamined, *, strict: bool) -> int:
    found = checked.report.diagnostics
    warned = strict and any(d.severity == "warning" for d in found)
    return exit_status(found) or int(warned)


def _examined(file: Path, options: argparse.Namespace) -> Examined | ServeExamined:
    """Check the plan in `file`, which may be a serve plan or another system's configuration."""
    if first_word(file) == "serve":
        from planc.driver.serving import examine_serve

        return examine_serve(file, set=dict(options.set))
    if options.system or is_foreign_name(file):
        return examine_foreign(file, options)
    return examine(file, set=dict(options.set), target=options.target)


def _fix(files: list[Path], options: argparse.Namespace) -> None:
    from planc.cli.apply_fixes import fix_file

    stream = sys.stdout if options.format == "text" else sys.stderr
    for file in files:
        lines = list(fix_file(str(file), dict(options.set), options.target, unsafe=options.unsafe_fixes).lines())
        if lines:
            print("\n".join(lines), end="\n\n", file=stream)


def plans_of(path: Path) -> list[Path]:
    """Return [`path`] for a file. For a folder, return all plan files below it, without layouts, hardware files and
    hidden folders."""
    return [file for file in files_of(path) if _is_plan(file)] if path.is_dir() else [path]


def files_of(path: Path) -> list[Path]:
    """Return [`path`] for a file. For a folder, return all `.plan` files below it, without hidden folders."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*.plan") if not _is_hidden(file.relative_to(path)))


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts[:-1])


def _is_plan(file: Path) -> bool:
    """True unless `file` is a layout or a hardware file. True if it is unreadable, so that the check reports it."""
    return first_word(file) not in ("layout", "hardware")


def _print(checked: list[Examined | ServeExamined], options: argparse.Namespace) -> None:
    diagnostics = [d for c in checked for d in c.report.diagnostics]
    if options.format == "json":
        reports = [c.report.to_json() for c in checked]
        print_json(reports[0]) if len(reports) == 1 else print_json_list(reports)
    elif options.format == "sarif":
        from planc.checks import rules
        from planc.diag.sarif import sarif
        from planc.version import __version__

        print_json(sarif(diagnostics, rules(), __version__))
    elif options.format in ("concise", "github"):
        from planc.diag.sarif import concise, github

        lines = github(diagnostics) if options.format == "github" else concise(diagnostics)
        print(lines, end="\n" if lines else "")
    else:
        for index, c in enumerate(checked):
            print("\n" if index else "", end="")
            show(c, brief=options.brief) if isinstance(c, Examined) else _show_serve(c)


def _show_serve(checked: ServeExamined) -> None:
    """Print the report of a serve plan, if its layouts have no error, and its diagnostics."""
    from planc.cli.views.serve_text import serve_lines
    from planc.cli.views.table import fitted

    lines = list(serve_lines(checked.report))
    if lines:
        print("\n".join(fitted(lines)))
    if checked.report.diagnostics:
        print() if lines else None
        print_diagnostics(checked.report.diagnostics, checked.sources)


def show(checked: Examined, *, brief: bool = False) -> None:
    """Print the report of a checked plan, if it could be costed, and its diagnostics. `brief`: a report of one line."""
    report = checked.report
    if report.step is not None:
        from planc.cli.views.report_text import brief_line, print_report
        from planc.cli.views.table import fitted

        if brief:
            print("\n".join(fitted([brief_line(report)])))
        else:
            print_report(report)
    if report.diagnostics:
        print() if report.step is not None else None
        print_diagnostics(report.diagnostics, checked.sources)
    if report.targets and not brief:
        from planc.cli.views.report_text import targets_lines
        from planc.cli.views.table import fitted

        print("\n".join(fitted(["", *targets_lines(report)])))
