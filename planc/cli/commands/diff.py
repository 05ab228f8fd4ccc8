"""`planc diff A B`: the differences between two plans, or between one plan on two clusters or with two settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import (
    DIAGNOSTICS,
    add_costed_target,
    add_set,
    exit_status,
    print_diagnostics,
    print_json,
    refused,
)
from planc.cli.foreign import add_foreign, check_system, examine_foreign, is_foreign_name
from planc.cli.pages import page_command, save_page, wrong_page
from planc.driver import Examined, examine
from planc.files import first_word

if TYPE_CHECKING:
    from planc.compare.diff import Diff
    from planc.driver.serving import ServeExamined


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a plan, or with --format markdown a folder: every plan in it")
    parser.add_argument("b", metavar="B", nargs="?", help="the other plan (A itself, with what --cluster or --to say)")
    help = 'machines of B, such as "2 x tpu_v5p(4x4x4)"; those of A too, where it is another system\'s file'
    parser.add_argument("--cluster", metavar="CLUSTER", help=help)
    add_foreign(parser, cluster=False)
    parser.add_argument("-o", "--output", metavar="PAGE", help="both plans side by side: .html, .svg or .json")
    parser.add_argument("--view", metavar="NAME", default="", help="one view of the page: step, memory, ...")
    parser.add_argument("--exit-zero", action="store_true", help="exit 0 when something differs, too")
    add_set(parser, "--to", "change a number that `let` names, in B alone")
    add_costed_target(parser)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from planc.compare.plan_edit import NotWrittenError

    if options.b is None and options.cluster is None and not options.to:
        print("planc diff: two plans are compared, or one with what --cluster or --to change", file=sys.stderr)
        return 2
    if options.output and (wrong := wrong_page(options)):
        print(f"planc diff: {wrong}", file=sys.stderr)
        return 2
    if wrong := check_system(options.system):
        print(f"planc diff: --from: {wrong}", file=sys.stderr)
        return 2
    if Path(options.a).is_dir() or Path(options.b or options.a).is_dir():
        return _folders(options)
    if "serve" in (kinds := [first_word(Path(file)) for file in (options.a, options.b or options.a)]):
        return _serve_plans(options, kinds)
    try:
        a, b = _first_plan(options), _second_plan(options)
    except NotWrittenError as error:
        print(f"planc diff: {options.b or options.a}: {error}", file=sys.stderr)
        return 2
    if options.format == "markdown" and not options.output:
        return _markdown(options, a, b)
    if a.costed is None or b.costed is None:
        return _refused([c for c in (a, b) if c.costed is None], options.format)
    from planc.compare.diff import diff

    found = diff(a.costed, b.costed, names=_names(options))
    if options.output:
        from planc.report.diff_page import diff_page

        return save_page(diff_page(a, b, found, page_command(options)), options, _status(found, options))
    if options.format == "json":
        print_json(found.to_json())
    else:
        _show(found)
    return _status(found, options)


def _status(found: Diff, options: argparse.Namespace) -> int:
    return 1 if (found.changes or found.apart) and not options.exit_zero else 0


def _markdown(options: argparse.Namespace, a: Examined, b: Examined) -> int:
    """Print the differences of two plans as a comment in Markdown, even if they have errors. Return the exit status."""
    from planc.cli.views.diff_markdown import markdown
    from planc.compare.pairs import pair

    for one in (a, b):
        if exit_status(one.report.diagnostics) == 2:
            return refused(one.report.diagnostics, "text", one.sources)
    names = _names(options)
    compared = pair(names[1], a, b, names)
    print(markdown([compared]))
    return 1 if compared.kind != "same" and not options.exit_zero else 0


def _folders(options: argparse.Namespace) -> int:
    """Print the differences of the plans of two folders as one comment in Markdown. Return the exit status."""
    from planc.cli.commands.check import plans_of
    from planc.cli.progress import Progress
    from planc.cli.views.diff_markdown import markdown
    from planc.compare.pairs import pairs

    folders = (Path(options.a), Path(options.b or options.a))
    if options.format != "markdown" or options.output or not all(folder.is_dir() for folder in folders):
        print("planc diff: two folders are compared with --format markdown, and nothing else", file=sys.stderr)
        return 2
    with Progress("diff") as progress:

        def examined(file: Path) -> Examined:
            progress.show(file.name)
            return examine(file, set=dict(options.set), target=options.target)

        found = list(pairs(folders, plans_of, examined))
    print(markdown(found))
    return 1 if any(p.kind != "same" for p in found) and not options.exit_zero else 0


def _first_plan(options: argparse.Namespace) -> Examined:
    path = Path(options.a)
    if is_foreign_name(path):
        return examine_foreign(path, options)
    return examine(path, set=dict(options.set), target=options.target)


def _second_plan(options: argparse.Namespace) -> Examined:
    """Return plan B, with the changes on the command line. Raises NotWrittenError if a change cannot be made."""
    from planc.compare.plan_edit import read, rewritten

    path, given = Path(options.b or options.a), dict(options.set)
    if is_foreign_name(path):
        return examine_foreign(path, options)
    unsaved = None
    if options.cluster is not None and path.is_file():
        unsaved = {path.resolve(): rewritten(read(path), "cluster", options.cluster)}
    return examine(path, set={**given, **dict(options.to)}, target=options.target, unsaved=unsaved)


def _serve_plans(options: argparse.Namespace, kinds: list[str]) -> int:
    """Print the differences of two serve plans. Return the exit status."""
    from planc.compare.serve_diff import serve_diff
    from planc.driver.serving import examine_serve

    if kinds != ["serve", "serve"]:
        print("planc diff: a serve plan is compared with a serve plan", file=sys.stderr)
        return 2
    if options.output or options.cluster or options.format == "markdown":
        print("planc diff: two serve plans have no page, no comment and no --cluster", file=sys.stderr)
        return 2
    given = dict(options.set)
    a = examine_serve(options.a, set=given, target=options.target)
    b = examine_serve(options.b or options.a, set={**given, **dict(options.to)}, target=options.target)
    if wrong := [one for one in (a, b) if one.report.sync is None]:
        return _refused(wrong, options.format)
    found = serve_diff(a, b, names=_names(options))
    if options.format == "json":
        print_json(found.to_json())
    else:
        _show(found)
    return _status(found, options)


def _names(options: argparse.Namespace) -> tuple[str, str]:
    changed = [f"{name}={value}" for name, value in options.to]
    changed += [f"on {options.cluster}"] if options.cluster is not None else []
    return options.a, " ".join([options.b or options.a, *changed])


def _refused(checked: Sequence[Examined | ServeExamined], format: str) -> int:
    found = [d for c in checked for d in c.report.diagnostics]
    if format == "json":
        print_json({"diagnostics": [d.to_json() for d in found]}, DIAGNOSTICS)
    else:
        for one in checked:
            print_diagnostics(one.report.diagnostics, one.sources)
    return exit_status(found)


def _show(found: Diff) -> None:
    from planc.cli.views.diff_text import lines
    from planc.cli.views.table import fitted

    print("\n".join(fitted(lines(found))))
