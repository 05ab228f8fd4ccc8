"""`planc search FILE`: finds the best layouts for the values that a plan leaves free with `?`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from planc.calibration.intervals import order_margin
from planc.cli.commands.export import ONTO
from planc.cli.common import add_costed_target, add_set, print_diagnostics, print_json, refused
from planc.cli.foreign import add_foreign, check_system, foreign_options, is_foreign_name
from planc.cli.found_plans import write_plans
from planc.cli.pages import is_page, page_command, save_page, wrong_page
from planc.cli.progress import Progress
from planc.cli.views.report_text import strong
from planc.cli.views.table import fitted, table
from planc.diag.errors import PlanError
from planc.diag.quoting import printable, shell_word
from planc.files import first_word, write_atomically
from planc.picture.units import approximate, days, money, seconds

if TYPE_CHECKING:
    from planc.interop.importing import Imported
    from planc.ir.report import RunCost
    from planc.searching import Found
    from planc.searching.result import Enough

ANNOUNCED = 100_000
"""Size of a search space (layouts) above which it is announced."""
ENOUGH_S = 20.0
"""Seconds for the question on how many nodes a layout fits."""
CUT_SHORT = {
    "time": "cut short after the seconds that were given",
    "interrupt": "interrupted",
    "memory": "the nodes with the highest bounds were given up for lack of memory",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many layouts to return (5)")
    parser.add_argument("--sequences", type=int, metavar="N", help="the largest batch, for `batch ?`")
    parser.add_argument("--memory", type=float, metavar="GIB", help="what a device may hold (the chip's memory)")
    parser.add_argument("--seconds", type=_seconds, metavar="S", help="end after so long with the best so far")
    about = "write the plans found, and the files they read, into a folder; or a page, PAGE.html, .svg or .json"
    parser.add_argument("-o", dest="folder", metavar="FOLDER", help=about)
    parser.add_argument("--view", metavar="NAME", default="", help="one view of the page: pareto, rejected, ...")
    help = "another cluster, such as '64 x h100_node price 2.50 USD per device hour'; again for each"
    parser.add_argument("--cluster", action="append", default=[], metavar="CLUSTER", help=help)
    help = "what to leave open in another system's file: mesh,schedule,recompute (all three), microbatch"
    parser.add_argument("--free", metavar="WORDS", help=help)
    parser.add_argument(
        "--allow-code", action="store_true", help="run a launch script, walled off, to see what it starts"
    )
    add_foreign(parser, cluster=False)
    add_costed_target(parser)
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    if options.system or is_foreign_name(Path(options.file)):
        return _on_foreign(options)
    if options.free:
        print("planc search: --free is for another system's file; a plan has `?`", file=sys.stderr)
        return 2
    if first_word(Path(options.file)) == "serve":
        from planc.cli.serve_search import run as on_serve

        with _interrupts() as interrupted:
            return on_serve(options, lambda: bool(interrupted))
    return _on_plan(options, options.file)


def _on_foreign(options: argparse.Namespace) -> int:
    """Search from another system's file: import it, leave open what `--free` names, and search that plan."""
    from planc.interop.freeing import FREE, freed_text
    from planc.interop.importing import import_files

    free = tuple((options.free or "mesh,schedule,recompute").split(","))
    if wrong := check_system(options.system) or next(
        (f"--free {f}: {', '.join(FREE)}" for f in free if f not in FREE), ""
    ):
        print(f"planc search: {wrong}", file=sys.stderr)
        return 2
    if options.cluster[1:]:
        print("planc search: another system's file is searched on one cluster", file=sys.stderr)
        return 2
    shown, file = options.file, Path(options.file)
    options.cluster, options.strict = "".join(options.cluster), False
    try:
        imported = import_files([file], foreign_options(options, file.parent), options.system)
    except PlanError as error:
        return refused(error.diagnostics, options.format, {})
    if imported.setup is None:
        return refused(imported.diagnostics, options.format, imported.sources)
    told = [d for d in imported.diagnostics if d.severity == "warning"]
    with redirect_stdout(sys.stderr):
        print_diagnostics(told, imported.sources) if told else None
    if imported.setup.model.startswith("from "):
        print("planc search: import it with -o, and search that plan: it reads a config beside it", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{imported.setup.name}.plan"
        write_atomically(path, freed_text(imported.setup, free))
        onto = _onto_command(imported, options) if options.format == "text" else ""
        options.file, options.cluster, options.set = str(path), [], []
        near = f" ({approximate(imported.inexact)})" if imported.inexact else ""
        status = _on_plan(options, f"{shown}{near}")
        if onto and status == 0:
            print(onto)
        return status


def _onto_command(imported: Imported, options: argparse.Namespace) -> str:
    """Return a line with the command that puts the first layout into the script that was searched; "" for a file that
    is no script of a system whose scripts planc changes."""
    assert imported.system and imported.setup
    if imported.system.name != ONTO or [d.format for d in imported.documents] != ["flags"]:
        return ""
    page = options.folder is None or is_page(options.folder)
    plan = Path("FOLDER" if page else options.folder) / f"{imported.setup.name}_1.plan"
    words = ["planc", "export", str(plan), "--onto", options.file]
    words += [word for name, value in options.set for word in ("--set", f"{name}={value}")]
    words += [word for name in options.ignore for word in ("--ignore", name)]
    how = "with -o FOLDER, " if page else ""
    return f"{how}the first becomes your script's flags by: {printable(' '.join(map(shell_word, words)))}"


def _on_plan(options: argparse.Namespace, shown: str) -> int:
    if options.cluster:
        return _on_clusters(options)
    from planc.driver import search

    options.output = options.folder if is_page(options.folder or "") else None
    if options.output and (wrong := wrong_page(options)):
        print(f"planc search: {wrong}", file=sys.stderr)
        return 2
    try:
        with Progress("search") as progress, _interrupts() as interrupted:
            found = search(
                options.file,
                set=dict(options.set),
                top=max(1, options.top),
                most_sequences=options.sequences,
                memory_gib=options.memory,
                target=options.target,
                seconds=options.seconds,
                interrupted=lambda: bool(interrupted),
                on_space=_announce,
                on_progress=lambda costed, waiting: progress.show(f"{costed:,} layouts costed, {waiting:,} nodes open"),
            )
            if found.nearest_miss is not None and not found.cut_short:
                found = replace(found, enough=_enough(options, progress))
    except PlanError as error:
        return refused(error.diagnostics, options.format, {})
    if options.output:
        from planc.report.search_page import search_page

        given, most = dict(options.set), options.sequences
        page = search_page(Path(options.file), given, most, found, page_command(options))
        return save_page(page, options, _status(found))
    if options.folder:
        try:
            write_plans(Path(options.folder), Path(options.file), [c.text for c in found.best])
        except FileExistsError as error:
            print(f"planc search: {error}", file=sys.stderr)
            return 2
    if options.format == "json":
        print_json(found.to_json())
        return _status(found)
    print(
        f"{strong(shown)}: {found.decided:,} layouts {'met' if found.cut_short else 'decided'},"
        f" {found.fully_costed:,} of them costed, in {seconds(found.seconds)}"
    )
    if found.cut_short:
        print(f"{CUT_SHORT[found.cut_short]}: the best so far, of up to {found.most_layouts:,} layouts")
    print(_costed_for(found))
    if not found.best:
        print("\n".join(_refusals(found)))
        print(_none(found), file=sys.stderr)
        return _status(found)
    print(f"MFU is of {found.best[0].step.peak}")
    long = found.best[0].run is not None
    rows = [
        (str(i), c.row, seconds(c.time_s), f"{c.step.mfu:.1%}", f"{c.memory_gib:.1f}", *_run(c.run), c.why)
        for i, c in enumerate(found.best, 1)
    ]
    heads = ("", "layout", "step", "MFU", "GiB", *(("run", "price") if long else ()), "than the next")
    print("\n".join(table(heads, rows, left=2, left_last=True)))
    print("\n".join(fitted([apart_line(found), *(_tight(found) if options.memory is None else [])])))
    print(f"\n{strong('time against memory')}, near the fastest")
    front = [(c.label, seconds(c.time_s), f"{c.memory_gib:.1f}") for c in found.pareto]
    print("\n".join(table(("layout", "step", "GiB"), front, left=1)))
    print("\n".join(_refusals(found)))
    return _status(found)


def _enough(options: argparse.Namespace, progress: Progress) -> Enough | None:
    from planc.compare.clusters import enough_nodes

    return enough_nodes(
        Path(options.file),
        seconds=ENOUGH_S if options.seconds is None else min(options.seconds, ENOUGH_S),
        on_nodes=lambda nodes: progress.show(f"nothing fits; trying {nodes} nodes"),
        set=dict(options.set),
        most_sequences=options.sequences,
        memory_gib=options.memory,
        target=options.target,
    )


def _tight(found: Found) -> list[str]:
    """Return a line that names the layouts that `planc check` warns of, because they leave almost no memory."""
    places = [str(place) for place, c in enumerate(found.best, 1) if c.memory_gib > found.roomy_gib]
    if not places:
        return []
    those = f"{', '.join(places)} leave{'s' * (len(places) == 1)} little of {found.room_gib:.0f} GiB free (W0508)"
    return [f"{those}: `--memory {found.roomy_gib:.1f}` leaves out such layouts"]


def _run(run: RunCost | None) -> tuple[str, ...]:
    """Return two table cells: days and price of a run. () if `run` is None."""
    if run is None:
        return ()
    price = money(run.price, run.currency) if run.price is not None and run.currency else "-"
    return (days(run.days) if run.days is not None else "-", price)


def _on_clusters(options: argparse.Namespace) -> int:
    """Print the best layout on each cluster and the recommended cluster. Return the exit status: 1 without any
    layout."""
    from planc.compare.clusters import Choice, compare
    from planc.compare.plan_edit import NotWrittenError

    options.output = options.folder if is_page(options.folder or "") else None
    if options.memory is not None:
        print("planc search: with --cluster there is no --memory", file=sys.stderr)
        return 2
    if options.output and (wrong := wrong_page(options, "clusters")):
        print(f"planc search: {wrong}", file=sys.stderr)
        return 2
    path = Path(options.file)
    try:
        with Progress("search") as progress:
            found = compare(
                path,
                [Choice.of(text) for text in options.cluster],
                set=dict(options.set),
                most_sequences=options.sequences,
                target=options.target,
                seconds=options.seconds,
                on_cluster=progress.show,
            )
    except (NotWrittenError, OSError) as error:
        print(f"planc search: {path}: {error}", file=sys.stderr)
        return 2
    status = 0 if any(row.best for row in found.rows) else 1
    if options.output:
        from planc.compare.plan_edit import read
        from planc.report.clusters_page import clusters_page

        return save_page(clusters_page(found, path.name, read(path), page_command(options)), options, status)
    if options.folder:
        try:
            write_plans(Path(options.folder), path, [row.best.text for row in found.rows if row.best])
        except FileExistsError as error:
            print(f"planc search: {error}", file=sys.stderr)
            return 2
    if options.format == "json":
        print_json(found.to_json())
    else:
        from planc.cli.views.clusters_text import lines

        print("\n".join(fitted(lines(found))))
    return status


def apart_line(found: Found) -> str:
    """Return a line with the 80 % prediction interval of the best layout's step, and with the number of layouts whose
    steps are too close to the best one to be ranked reliably."""
    likely = found.best[0].interval
    assert likely is not None
    said = f"80 % interval of the first: {seconds(likely.low)} to {seconds(likely.high)}"
    if found.equivalent < 2:
        return said
    return f"{said}; 1 to {found.equivalent} cannot be told apart: their steps are less than {order_margin():.1%} apart"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def _announce(most_layouts: int) -> None:
    """Print to standard error how many layouts will be searched, if there are at least `ANNOUNCED`."""
    if most_layouts >= ANNOUNCED:
        print(
            f"planc search: up to {most_layouts:,} layouts; --seconds S or Ctrl-C ends with the best so far",
            file=sys.stderr,
        )


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Yield a list to which the first Ctrl-C appends an entry. The second raises KeyboardInterrupt."""
    met: list[int] = []

    def note(number: int, frame: object) -> None:
        if met:
            raise KeyboardInterrupt
        met.append(number)

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before == signal.SIG_IGN:
        yield met
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield met
    finally:
        signal.signal(signal.SIGINT, before)


def _status(found: Found) -> int:
    """Return 0 if there are layouts, else 1; 3 if the search ended at its time limit, 130 after Ctrl-C."""
    if found.cut_short:
        return 130 if found.cut_short == "interrupt" else 3
    return 0 if found.best else 1


def _costed_for(found: Found) -> str:
    if found.target is None:
        return "target none: seconds and memory of any correct program"
    return f"target {found.target}: seconds and memory of its programs"


def _refusals(found: Found) -> Iterator[str]:
    """Yield how the meshes of the space end, and a table of what was refused, by its reason."""
    if found.meshes:
        yield f"\n{strong(found.meshes_text)}"
    if found.refusals:
        rows = [(r.code, f"{r.meshes:,}", f"{r.layouts:,}", r.message) for r in found.refusals]
        yield from table(("refused", "meshes", "layouts", "the first of them"), rows, left=1, left_last=True)


def _none(found: Found) -> str:
    """Return the message that no layout fits, with the nearest miss."""
    near = found.nearest_miss
    if near is None and found.cut_short:
        return "no layout that fits was met by then"
    if near is None:
        return "every layout breaks a rule of the language: fill in the `?` by hand, and `planc check` names the rule"
    over = near.memory_gib - found.room_gib
    more = f"\n{found.enough.text}" if found.enough else ""
    return (
        f"{found.none_fits} the {found.room_gib:.1f} GiB of a device; the nearest miss needs {near.memory_gib:.1f} GiB,"
        f" {over:.1f} GiB too much{', if its allocator loses what is predicted' if found.may_fit else ''}: {near.label}"
        f"{more}"
    )
