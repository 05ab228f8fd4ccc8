"""Pages (of plans, runs or searches) that commands write as HTML, SVG or JSON, by the suffix of the output path."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planc.cli.common import did_you_mean, print_json
from planc.files import write_atomically

if TYPE_CHECKING:
    from planc.report.render import Page

Form = Literal["html", "svg", "json"]
FORMS: dict[str, Form] = {".html": "html", ".htm": "html", ".svg": "svg", ".json": "json"}


def is_page(path: str) -> bool:
    """True if `path` ends in `.html`, `.htm`, `.svg` or `.json`, the formats of pages."""
    return Path(path).suffix.lower() in FORMS


def wrong_page(options: argparse.Namespace, kind: str = "") -> str:
    """Return an error message if `options` (`command`, `output`, `view`) name a page that cannot be written; else "".

    `kind` is the kind of page ("": that of the command).
    """
    from planc.report.render import view_names

    if options.output and not is_page(options.output):
        return f"{options.output}: the ending picks the form: .html, .svg or .json"
    names = view_names(kind or options.command)
    if options.view in ("", *names):
        return ""
    known = f"one of {', '.join(names)}"
    return f"--view {options.view}: {did_you_mean(options.view, names) or known}"


def page_command(options: argparse.Namespace) -> str:
    """Return the shell command that makes the page with the files and settings of `options`."""
    given = vars(options)
    files = given.get("files") or [w for n in ("a", "b", "file") if (w := given.get(n))]
    words = ["planc", options.command, *map(_for_others, files)]
    for name in ("set", "to"):
        words += [w for key, value in given.get(name) or () for w in (f"--{name}", f"{key}={value}")]
    names = ("target", "cluster", "view", "top", "sequences", "memory", "seconds")
    for name in names:
        values = given[name] if isinstance(given.get(name), list) else [given.get(name)]
        words += [w for value in values if value not in (None, "") for w in (f"--{name}", str(value))]
    return shlex.join([*words, "-o", _for_others(options.output or "report.html")])


def _for_others(path: str) -> str:
    """Return `path` as it means something to who gets the page: from the working folder, or a name alone, without the
    folders of this machine."""
    if not Path(path).is_absolute():
        return path
    inside = Path(path).is_relative_to(Path.cwd())
    return str(Path(path).relative_to(Path.cwd())) if inside else Path(path).name


def save_page(page: Page, options: argparse.Namespace, status: int) -> int:
    """Write `page`, or only its view `options.view`, to the output file and print that file's path; without an output
    file, print the page as JSON. Return `status`, or 2 if the page has no such view or picture."""
    from planc.report.render import as_json, html, picture_file

    if status == 0 and options.view and getattr(page, options.view) is None:
        print(f"planc {options.command}: --view {options.view}: here is nothing of it to show", file=sys.stderr)
        return 2
    if not options.output:
        print(as_json(page, options.view))
        return status
    form = FORMS[Path(options.output).suffix.lower()]
    text = {"json": as_json, "html": html, "svg": picture_file}[form](page, options.view)
    if text is None:
        print(f"planc {options.command}: {options.view or 'it'} has no picture: write html or json", file=sys.stderr)
        return 2
    data = text.encode("utf-8", "backslashreplace")
    write_atomically(Path(options.output), data)
    if options.format == "json":
        facts = {"page": options.output, "bytes": len(data), "headline": page.verdict.headline}
        print_json(facts, "planc.page_file/1")
    else:
        print(f"{options.output}: {page.verdict.sentence} {len(data) / 1e3:,.0f} kB")
    return status
